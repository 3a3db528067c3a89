//! The namespaces of a lab and what lies in them. The lab's first process holds the mount, pid and host name namespaces;
//! killing it ends everything. It does not know the daemons.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::conf::{self, Ports};
use super::{HOST, INSIDE, Options, USERS};
use crate::command::{self, log_tail};
use crate::error::{Error, Result, at};
use crate::run::{Life, Process};
use crate::{random, wait_until};

const START_LIMIT: Duration = Duration::from_mins(1);

/// What the lab's first process does before it waits: `$1` the root, `$2` the run folder, `$3` the host name, `$4` the GPU
/// device files, `$5` what to wait for. The root is shared with other labs, so it is read-only here; what daemons and jobs
/// write to lies in memory or in the run folder.
const NAMESPACE: &str = r#"
mount --bind "$1" "$1"
cd "$1"
mount -o remount,bind,ro "$1"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
mount -t tmpfs -o mode=755 run "$1/run"
mount -t tmpfs -o mode=1777 tmp "$1/tmp"
mount -t tmpfs -o mode=1777 tmp "$1/var/tmp"
mkdir "$1/run/lab" "$1/run/gpu"
mount --bind "$2" "$1/run/lab"
hostname "$3"
for gpu in $(seq 0 "$4"); do mknod -m 666 "$1/run/gpu/gpu$gpu" c 1 3; done
mkfifo "$1/run/lab/life"
exec chroot "$1" /bin/sh -c 'exec 3<&0 4<>/run/lab/life; : >/run/lab/made; eval "$1 <&3 >/dev/null 3<&- &"; exec 3<&-; wait $!' sh "$5"
"#;

/// Why this machine cannot run a Slurm lab, if it can't.
pub fn unsupported() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("a Slurm lab needs root (namespaces, device files)".to_owned());
    }
    let missing: Vec<&str> =
        ["unshare", "nsenter", "mount", "chroot"].into_iter().filter(|name| !command::exists(name)).collect();
    if !missing.is_empty() {
        return Some(format!("missing: {}", missing.join(", ")));
    }
    if !command::exists("debootstrap") && !command::exists("apt-get") {
        return Some("neither debootstrap nor apt-get to install it".to_owned());
    }
    let namespaces = ["--mount", "--pid", "--uts", "--fork", "true"];
    let tried = Command::new("unshare").args(namespaces).stdin(Stdio::null()).output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(format!("no namespaces of its own: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Fills the run folder: configuration, keys, folders with the owners that the daemons insist on.
pub(super) fn furnish(run: &Path, root: &Path, options: &Options, ports: Ports) -> Result<()> {
    let slurm = user_id(root, "slurm")?;
    let rest = user_id(root, &options.local_rest_user)?;
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(at(path))
    };
    let own = |path: &Path, user| chown(path, Some(user), Some(user)).map_err(at(path));
    let write = |name: &str, bytes: &[u8]| {
        let path = run.join(name);
        std::fs::write(&path, bytes).map_err(at(&path)).map(|()| path)
    };
    mode(run, 0o755)?;
    for (name, bits, user) in [
        ("log", 0o777, slurm),
        ("pids", 0o755, slurm),
        ("state", 0o700, slurm),
        ("spool", 0o755, 0),
        ("munge", 0o755, 0),
        ("rest", 0o755, rest),
    ] {
        let path = run.join(name);
        std::fs::create_dir(&path).map_err(at(&path))?;
        mode(&path, bits)?;
        own(&path, user)?;
    }
    for (name, text) in [
        ("slurm.conf", conf::slurm(options, ports)),
        ("gres.conf", conf::gres(options)),
        ("cgroup.conf", conf::cgroup(options.release).to_owned()),
    ] {
        mode(&write(name, text.as_bytes())?, 0o644)?;
    }
    let jwt = write("jwt.key", &random::bytes(32)?)?;
    mode(&jwt, 0o600)?;
    own(&jwt, slurm)?;
    mode(&write("munge/munge.key", &random::bytes(128)?)?, 0o400)
}

fn user_id(root: &Path, user: &str) -> Result<u32> {
    if let Some((_, id)) = USERS.iter().find(|(name, _)| *name == user) {
        return Ok(*id);
    }
    let path = root.join("etc/passwd");
    let text = std::fs::read_to_string(&path).map_err(at(&path))?;
    text.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields.first() == Some(&user))
        .and_then(|fields| fields.get(2)?.parse().ok())
        .ok_or_else(|| Error::Unknown(format!("no user {user} in {}", path.display())))
}

/// Starts the lab's first process, and waits until its namespaces are furnished.
pub(super) async fn namespace(run: &Path, root: &Path, options: &Options) -> Result<(Child, Process)> {
    let log = run.join("log/namespace.out");
    let out = std::fs::File::create(&log).map_err(at(&log))?;
    let err = out.try_clone().map_err(at(&log))?;
    let (stdin, wait_for) = match options.life {
        Life::Owned => (Stdio::piped(), "cat"),
        Life::Detached => (Stdio::null(), "sleep infinity"),
    };
    let last_gpu = options.nodes.iter().map(|node| node.gpus).max().unwrap_or(1).max(1) - 1;
    let mut unshare = Command::new("unshare")
        .args(["--mount", "--pid", "--uts", "--fork", "--kill-child=KILL", "--propagation", "private"])
        .args(["sh", "-euc", NAMESPACE, "sh"])
        .args([root, run])
        .args([HOST, &last_gpu.to_string(), wait_for])
        .process_group(0)
        .stdin(stdin)
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|source| Error::Spawn { program: "unshare".to_owned(), source })?;
    let made = run.join("made");
    let children = format!("/proc/{0}/task/{0}/children", unshare.id());
    let found = wait_until("the lab's namespaces", START_LIMIT, async || {
        if let Ok(Some(status)) = unshare.try_wait() {
            return Ok(Err(Error::Failed {
                command: "unshare".to_owned(),
                status: status.to_string(),
                output: log_tail(&log),
            }));
        }
        if !made.exists() {
            return Err("being made".to_owned());
        }
        let text = std::fs::read_to_string(&children).map_err(|error| error.to_string())?;
        let init = text.trim().parse().ok().and_then(Process::find);
        init.map(Ok).ok_or_else(|| format!("children of unshare: {text:?}"))
    })
    .await;
    match found.and_then(|found| found) {
        Ok(init) => Ok((unshare, init)),
        Err(error) => {
            // Nothing inside can outlive unshare (--kill-child); that it is gone already is fine.
            let _ = unshare.kill();
            let _ = unshare.wait();
            Err(error)
        }
    }
}

/// The command line that runs the rest inside, with an environment of its own.
pub(super) fn ways_in(init: Process) -> Vec<String> {
    let pid = init.pid.to_string();
    let conf = format!("SLURM_CONF={INSIDE}/slurm.conf");
    [
        "nsenter",
        "--target",
        &pid,
        "--mount",
        "--pid",
        "--uts",
        "--root",
        "--wd",
        "--",
        "/usr/bin/env",
        "-i",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "TERM=dumb",
        "TZ=UTC",
        "LC_ALL=C.UTF-8",
        &conf,
    ]
    .map(str::to_owned)
    .to_vec()
}
