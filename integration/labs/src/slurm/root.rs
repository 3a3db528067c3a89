//! The root filesystem of a release: Debian's packages, unpacked once into the user's cache folder. It is made under a
//! temporary name and renamed when whole, and labs mount it read-only, so that every lab starts from the same.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{HOST, Release, USERS};
use crate::cache::{self, Lock, say};
use crate::error::{Error, Result, at};
use crate::{command, slurm};

/// Counted up when what is below changes, so that older roots are made again.
const RECIPE: &str = "1";
const MARKER: &str = "etc/gpu-bridge-lab";
const PACKAGES: &str = "slurmctld slurmd slurmrestd slurm-client munge slurm-wlm-jwt-plugin";
const BUILD_LIMIT: Duration = Duration::from_mins(20);
const ASK_LIMIT: Duration = Duration::from_secs(30);

/// The root filesystem of `release`, made if it is not there yet (about a minute; needs root).
pub async fn prepare(release: Release) -> Result<PathBuf> {
    let roots = cache::make(&cache::folder()?.join("slurm-roots"))?;
    let root = roots.join(release.name());
    if whole(&root) {
        return Ok(root);
    }
    if let Some(reason) = slurm::unsupported() {
        return Err(Error::Unsupported(reason));
    }
    let lock = roots.join(format!("{}.lock", release.name()));
    let _lock = Lock::take(&lock, &format!("it makes the root of Slurm {}", release.name())).await?;
    if whole(&root) {
        return Ok(root);
    }
    let start = Instant::now();
    say(&format!("making the root of Slurm {} in {} (once, about a minute)", release.name(), root.display()));
    let fresh = roots.join(format!("{}.building", release.name()));
    let log = roots.join(format!("{}.log", release.name()));
    for old in [&root, &fresh] {
        if old.exists() {
            std::fs::remove_dir_all(old).map_err(at(old))?;
        }
    }
    if log.exists() {
        std::fs::remove_file(&log).map_err(at(&log))?;
    }
    build(release, &roots, &fresh, &log).await?;
    std::fs::rename(&fresh, &root).map_err(at(&root))?;
    say(&format!("made the root of Slurm {} in {:.0} s", release.name(), start.elapsed().as_secs_f32()));
    Ok(root)
}

fn whole(root: &Path) -> bool {
    std::fs::read_to_string(root.join(MARKER)).is_ok_and(|recipe| recipe.trim() == RECIPE)
}

async fn build(release: Release, roots: &Path, fresh: &Path, log: &Path) -> Result<()> {
    let env = [("DEBIAN_FRONTEND", "noninteractive"), ("LC_ALL", "C")];
    let missing: Vec<&str> = [
        ("debootstrap", command::exists("debootstrap")),
        ("debian-archive-keyring", Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").exists()),
    ]
    .into_iter()
    .filter_map(|(package, there)| (!there).then_some(package))
    .collect();
    if !missing.is_empty() {
        say(&format!("installing {}", missing.join(", ")));
        command::logged(&["apt-get", "update", "-q"], roots, &env, log, BUILD_LIMIT).await?;
        let mut install = vec!["apt-get", "install", "-y", "-q", "--no-install-recommends"];
        install.extend(&missing);
        command::logged(&install, roots, &env, log, BUILD_LIMIT).await?;
    }
    let target = text(fresh)?;
    let mut debootstrap = vec!["debootstrap", "--variant=minbase", release.suite(), target];
    let mirror = mirror();
    debootstrap.extend(mirror.as_deref());
    command::logged(&debootstrap, roots, &env, log, BUILD_LIMIT).await?;

    // Packages must not start their daemons, and apt inside needs the machine's way to the mirror.
    let policy = fresh.join("usr/sbin/policy-rc.d");
    write(&policy, "#!/bin/sh\nexit 101\n")?;
    std::fs::set_permissions(&policy, std::fs::Permissions::from_mode(0o755)).map_err(at(&policy))?;
    std::fs::copy("/etc/resolv.conf", fresh.join("etc/resolv.conf")).map_err(at("/etc/resolv.conf"))?;
    write(&fresh.join("etc/apt/apt.conf.d/90lab"), &apt_settings().await)?;
    let script = format!(
        "mount -t proc proc \"$1/proc\"; mount --rbind /dev \"$1/dev\"
         chroot \"$1\" sh -ec 'apt-get update -q; apt-get install -y -q --no-install-recommends {PACKAGES}; apt-get clean'"
    );
    let install =
        ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script.as_str(), "sh", target];
    command::logged(&install, roots, &env, log, BUILD_LIMIT).await?;

    append(&fresh.join("etc/hosts"), &format!("127.0.0.1 localhost {HOST}\n"))?;
    for (user, id) in USERS {
        append(&fresh.join("etc/passwd"), &format!("{user}:x:{id}:{id}::/tmp:/bin/sh\n"))?;
        append(&fresh.join("etc/group"), &format!("{user}:x:{id}:\n"))?;
    }
    write(&fresh.join(MARKER), RECIPE)
}

/// The mirror that this machine's own Debian uses; elsewhere debootstrap's default.
fn mirror() -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").ok()?;
    if !release.lines().any(|line| line == "ID=debian") {
        return None;
    }
    let files = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];
    files.into_iter().filter_map(|file| std::fs::read_to_string(file).ok()).find_map(|text| mirror_in(&text))
}

fn mirror_in(sources: &str) -> Option<String> {
    let lines = sources.lines().filter(|line| line.starts_with("URIs:") || line.starts_with("deb "));
    let words = lines.flat_map(str::split_whitespace).map(|word| word.trim_end_matches('/'));
    words.filter(|word| word.contains("://")).find(|word| word.ends_with("/debian")).map(str::to_owned)
}

/// Proxies and checks as apt is set on this machine.
async fn apt_settings() -> String {
    let dump = command::output(&["apt-config", "dump"], ASK_LIMIT).await;
    let dump = dump.map(|output| output.stdout).unwrap_or_default();
    let wanted = ["Acquire::http", "Acquire::https", "Acquire::Check-"];
    let lines = dump.lines().filter(|line| wanted.iter().any(|start| line.starts_with(start)));
    lines.fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    })
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::Unsupported(format!("{} is not UTF-8", path.display())))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(at(path))
}

fn append(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_read_from_both_formats() {
        let deb822 = "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: x\n\nURIs: http://mirror.example/debian/\n";
        let one_line =
            "# deb http://old.example/debian x main\ndeb [arch=amd64] http://mirror.example/debian x main\n";
        for sources in [deb822, one_line] {
            assert_eq!(mirror_in(sources).as_deref(), Some("http://mirror.example/debian"));
        }
        assert_eq!(mirror_in("deb http://mirror.example/other x main"), None);
    }
}
