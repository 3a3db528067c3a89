//! The port against a slurmrestd that serves saved answers of one release: which version it takes, what it sees through
//! it, and by which mouth it writes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex as StdMutex;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{Method, StatusCode, Uri};
use gpu_bridge_core::facts::slurm::{BaseState, JobState};

use super::*;

/// A release's own words for a URL that it does not serve.
const OLD_404: &str = "Unable find requested URL. Please view /openapi/v3 for API reference.";
const NEW_404: &str = "Unable to find requested URL endpoint. Please query the '/openapi/v3' endpoint.";

/// What is served now: the folder of a release, and versions of it.
#[derive(Clone)]
struct Served {
    release: &'static str,
    versions: Vec<&'static str>,
    /// What is answered in place of the saved answer, by what is asked for below the version.
    instead: HashMap<&'static str, (StatusCode, String)>,
}

type Shared = Arc<StdMutex<(Served, Vec<Request>)>>;

/// A request, and the client's end of its connection.
#[derive(Clone)]
struct Request {
    line: String,
    from: SocketAddr,
}

async fn answer(
    State(shared): State<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    method: Method,
    uri: Uri,
) -> (StatusCode, String) {
    let mut shared = shared.lock().unwrap();
    shared.1.push(Request { line: format!("{method} {}", uri.path()), from });
    let Served { release, versions, instead } = shared.0.clone();
    let missing = if release == "26.05" { NEW_404 } else { OLD_404 };
    let path: Vec<&str> = uri.path().trim_matches('/').splitn(3, '/').collect();
    let file = match path[..] {
        ["slurm", version, what] if versions.contains(&version) => {
            if let Some(answer) = instead.get(what) {
                return answer.clone();
            }
            let name = match what {
                "jobs/state" => "jobs-state",
                // Each job is found among all of them.
                what if what.starts_with("job/") => "jobs",
                what => what,
            };
            fixtures().join(release).join(version).join(format!("{name}.json"))
        }
        _ => return (StatusCode::NOT_FOUND, missing.to_owned()),
    };
    match (method, std::fs::read_to_string(file)) {
        (Method::GET, Ok(body)) => (StatusCode::OK, body),
        (Method::POST, _) => (StatusCode::OK, r#"{"errors":[]}"#.to_owned()),
        _ => (StatusCode::NOT_FOUND, missing.to_owned()),
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/slurm/fixtures")
}

/// What a squeue does that shows a saved text, with the word in it that it is asked for, and writes its arguments to a file.
fn shows(text: &str, folder: &Path) -> String {
    format!(
        r#"printf '%s\n' "$@" >> {}; for a in "$@"; do case $a in --Format=*) n=${{a##*tres-per-task:}};; esac; done
           case "$*" in *--jobs=999) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac
           sed "s/|nonce|/$n/g" {}"#,
        folder.join("squeue").display(),
        fixtures().join("cli").join(text).display(),
    )
}

/// Refuses writes to what does not exist as Slurm does for an Administrator.
const MAY_ALL: &str = r#"case "$*" in *gpu-bridge-nobody*) echo 'slurm_update error: Invalid node name specified' >&2; exit 1;; esac"#;

/// The two commands, as scripts: they differ in their last word alone.
fn scripts(scontrol: &str, squeue: &str) -> (Vec<String>, Option<Vec<String>>) {
    let script = format!("if [ $0 = squeue ]; then {squeue}\nelse {scontrol}\nfi");
    let argv = |name: &str| ["sh", "-c", &script, name].map(str::to_owned).to_vec();
    (argv("scontrol"), Some(argv("squeue")))
}

struct World {
    client: Client,
    shared: Shared,
    folder: tempfile::TempDir,
}

impl World {
    /// `scontrol` writes its arguments to a file, `squeue` shows the jobs that it showed in the release.
    async fn of(release: &'static str, versions: &[&'static str]) -> Self {
        let served = Served { release, versions: versions.to_vec(), instead: HashMap::new() };
        let shared: Shared = Arc::new(StdMutex::new((served, Vec::new())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "token").unwrap();
        // Nobody hides anything; what is written is kept.
        let script = format!(
            "{MAY_ALL}; [ \"$2\" = config ] && {{ printf 'PrivateData = none\\nSlurmUser = slurm(64030)\\n'; cat {} 2>/dev/null; \
             exit 0; }}; printf '%s\\n' \"$@\" >> {}",
            folder.path().join("config").display(),
            folder.path().join("scontrol").display()
        );
        let (scontrol, squeue) = scripts(&script, &shows(&format!("{release}/jobs.txt"), folder.path()));
        let client = connect(Options {
            url,
            token: Some(crate::slurm::TokenSource::File(token_file)),
            scontrol,
            squeue,
            ..Options::default()
        })
        .unwrap();
        Self { client, shared, folder }
    }

    fn serve(&self, release: &'static str, versions: &[&'static str]) {
        self.shared.lock().unwrap().0 =
            Served { release, versions: versions.to_vec(), instead: HashMap::new() };
    }

    fn instead(&self, what: &'static str, status: StatusCode, body: &str) {
        self.shared.lock().unwrap().0.instead.insert(what, (status, body.to_owned()));
    }

    /// Where the newest request came from.
    fn newest_connection(&self) -> SocketAddr {
        self.shared.lock().unwrap().1.last().unwrap().from
    }

    /// What was written: POSTs, and scontrol's arguments.
    fn written(&self) -> (Vec<String>, Vec<String>) {
        let asked = self.shared.lock().unwrap().1.clone();
        let posts =
            asked.into_iter().map(|asked| asked.line).filter(|line| line.starts_with("POST")).collect();
        let scontrol = std::fs::read_to_string(self.folder.path().join("scontrol")).unwrap_or_default();
        (posts, scontrol.lines().map(str::to_owned).collect())
    }
}

#[tokio::test]
async fn the_best_version_that_both_know_is_taken() {
    for (release, served, taken) in [
        ("22.05", &["v0.0.36", "v0.0.37", "v0.0.38"][..], Some("v0.0.38")),
        ("22.05", &["v0.0.37"], Some("v0.0.37")),
        ("22.05", &["v0.0.36"], None),
        ("23.11", &["v0.0.38", "v0.0.39", "v0.0.40"], Some("v0.0.40")),
        ("24.11", &["v0.0.40", "v0.0.41", "v0.0.42"], Some("v0.0.42")),
        ("26.05", &["v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"], Some("v0.0.45")),
        // A release newer than we know: the newest known one, or a clear stop.
        ("26.05", &["v0.0.44", "v0.0.45", "v0.0.46", "v0.0.47"], Some("v0.0.45")),
        ("26.05", &["v0.0.46", "v0.0.47"], None),
    ] {
        let world = World::of(release, served).await;
        let found = world.client.api_version().await;
        match taken {
            Some(version) => assert_eq!(found.unwrap(), version, "{served:?}"),
            None => assert!(matches!(found, Err(Error::NoVersion { .. })), "{served:?}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn an_upgrade_under_us_is_noticed_at_the_next_look() {
    let world = World::of("24.11", &["v0.0.40", "v0.0.41", "v0.0.42"]).await;
    assert!(world.client.look(&[]).await.is_ok());
    // Upgraded twice, past all that it served.
    world.serve("26.05", &["v0.0.45", "v0.0.46"]);
    assert!(matches!(world.client.look(&[]).await, Err(Error::NoSuchUrl { .. })));
    assert!(world.client.look(&[]).await.is_ok());
    assert_eq!(world.client.api_version().await.unwrap(), "v0.0.45");
}

#[tokio::test]
async fn the_same_cluster_is_seen_through_every_release() {
    let mut seen = std::collections::BTreeSet::new();
    for (release, version) in [("24.11", "v0.0.42"), ("26.05", "v0.0.45")] {
        let world = World::of(release, &[version]).await;
        let facts = world.client.look(&[JobId(15), JobId(999)]).await.unwrap();
        let states: Vec<_> = facts.nodes.values().map(|node| (node.state.clone(), node.gpus_used)).collect();
        assert_eq!(
            states,
            [
                (BaseState::Mixed, Some(4)),
                (BaseState::Allocated, Some(4)),
                (BaseState::Mixed, Some(1)),
                (BaseState::Mixed, Some(1)),
            ],
            "{release}"
        );
        // A finished job only because it is watched; no others.
        let ids: Vec<u32> = facts.jobs.keys().map(|id| id.0).collect();
        assert_eq!(ids, (1..=15).chain([17]).collect::<Vec<_>>(), "{release}");
        assert_eq!(facts.pending_unread, 0, "{release}");
        seen.insert(format!(
            "{:?}",
            facts.jobs.values().map(|job| (&job.nodes, job.gpus_per_node)).collect::<Vec<_>>()
        ));
    }
    assert_eq!(seen.len(), 1, "{seen:#?}");
}

#[tokio::test]
async fn versions_without_states_of_jobs_are_listed_by_squeue() {
    for (release, version, drains) in [("22.05", "v0.0.38", "scontrol"), ("24.11", "v0.0.40", "slurmrestd")] {
        let world = World::of(release, &[version]).await;
        let facts = world.client.look(&[JobId(999)]).await.unwrap();
        assert!(facts.jobs.len() > 10 && facts.jobs.values().any(|job| job.state == JobState::Running));
        let asked = world.shared.lock().unwrap().1.clone();
        assert!(asked.iter().all(|request| !request.line.contains("/job")), "{release}");
        let squeue = std::fs::read_to_string(world.folder.path().join("squeue")).unwrap();
        let lines: Vec<&str> = squeue.lines().filter(|line| !line.starts_with("--Format=")).collect();
        let all = ["--local", "--all", "--states=all"];
        assert_eq!(lines, [&all[..], &all[..], &["--jobs=999"]].concat());
        let through = &facts.reached.through;
        assert_eq!((through["jobs"].as_str(), through["drains"].as_str()), ("squeue", drains));
        assert_eq!(facts.reached.api_version.as_deref(), Some(version));
    }
}

#[tokio::test]
async fn without_slurmrestd_the_commands_do_it_all() {
    for (release, of) in [("22.05", "22.05.8"), ("24.11", "24.11.5"), ("26.05", "26.05.5")] {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("scontrol");
        let script = format!(
            r#"{MAY_ALL}; printf '%s\n' "$*" >> {}; for what in "$@"; do :; done; case "$*" in *show*) cat {}/$what.txt;; esac"#,
            log.display(),
            fixtures().join("cli").join(release).display(),
        );
        let (scontrol, squeue) = scripts(&script, &shows(&format!("{release}/jobs.txt"), folder.path()));
        let client = connect(Options { mode: Mode::Cli, scontrol, squeue, ..Options::default() }).unwrap();
        let facts = client.look(&[]).await.unwrap();
        assert_eq!((facts.nodes.len(), facts.reservations.len(), facts.partitions.len()), (3, 2, 3));
        assert_eq!(facts.unreadable_nodes.len(), 1);
        let reason = facts.nodes[&SlurmNodeName::from("gpu4")].reason.as_ref().unwrap();
        assert_eq!(reason.text, "multi  State=DOWN [x@5]\nline two");
        assert!(facts.jobs.len() > 10 && facts.next_job_id.is_some());
        assert_eq!((facts.reached.release.as_deref(), facts.reached.api_version), (Some(of), None));
        assert!(facts.reached.through.values().all(|mouth| mouth != "slurmrestd"));
        assert!(matches!(client.api_version().await, Err(Error::Options(_))));

        // Written by scontrol; the saved texts do not change, so nothing is believed.
        let node = SlurmNodeName::from("gpu1");
        let reason = "gpu-bridge:h0042 e7 window".to_owned();
        let done = client.act(&Action::Drain { node, reason, over: None }).await;
        assert!(matches!(done, Err(Error::NotSeen { .. })), "{done:?}");
        let written = std::fs::read_to_string(&log).unwrap();
        assert!(written.contains("update NodeName=gpu1 State=DRAIN Reason=gpu-bridge:h0042 e7 window\n"));
    }
}

/// Of `mode = "cli"`.
fn cli((scontrol, squeue): (Vec<String>, Option<Vec<String>>)) -> Options {
    Options {
        mode: Mode::Cli,
        scontrol,
        squeue,
        timeout: Duration::from_secs(2),
        max_response_bytes: 10_000,
        ..Options::default()
    }
}

/// A scontrol that shows the saved texts of a release.
fn good_scontrol() -> String {
    let folder = fixtures().join("cli/24.11");
    format!("{MAY_ALL}; for what in \"$@\"; do :; done; cat {}/$what.txt", folder.display())
}

#[tokio::test]
async fn commands_that_fail_or_are_not_there_fail_the_look() {
    let away =
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1";
    for (squeue, code) in [
        (away, "GB0316"),
        ("exec /nowhere/squeue", "GB0316"),
        ("exec yes", "GB0315"),
        ("sleep 60", "GB0315"),
        ("echo odd", "GB0307"),
        // Ended well, and not squeue: no heading, no "no jobs".
        ("true", "GB0307"),
    ] {
        let client = connect(cli(scripts(&good_scontrol(), squeue))).unwrap();
        let error = client.look(&[]).await.unwrap_err();
        assert_eq!(error.code(), code, "{squeue:?}: {error}");
    }
    let nowhere = connect(cli((vec!["/nowhere/scontrol".to_owned()], None))).unwrap().look(&[]).await;
    assert_eq!(nowhere.unwrap_err().code(), "GB0314");
}

#[test]
fn both_commands_run_as_one_user() {
    let words = |words: &str| words.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let with = |scontrol: &str, squeue: Option<&str>| {
        connect(Options { scontrol: words(scontrol), squeue: squeue.map(words), ..cli((Vec::new(), None)) })
    };
    for (scontrol, squeue) in [
        ("scontrol", None),
        ("sudo -n /opt/slurm/bin/scontrol", Some("sudo -n /opt/slurm/bin/squeue")),
        ("/opt/a", Some("/opt/b")),
    ] {
        assert!(with(scontrol, squeue).is_ok(), "{scontrol} {squeue:?}");
    }
    for (scontrol, squeue) in [
        ("", None),
        ("scontrol", Some("")),
        ("scontrol", Some("sudo -u nobody squeue")),
        ("sudo -n scontrol", Some("squeue")),
    ] {
        assert!(matches!(with(scontrol, squeue), Err(Error::Options(_))), "{scontrol} {squeue:?}");
    }
    for (scontrol, squeue) in [
        ("scontrol", "squeue"),
        ("sudo -n /opt/slurm/bin/scontrol", "sudo -n /opt/slurm/bin/squeue"),
        ("env -i wrapper", "env -i squeue"),
    ] {
        let scontrol: Vec<String> = words(scontrol);
        assert_eq!(super::super::commands::squeue_beside(&scontrol).join(" "), squeue);
    }
}

/// Behind sudo the commands run as another than the daemon: what counts is what Slurm lets them do.
#[tokio::test]
async fn what_slurm_lets_the_commands_do_is_asked_of_slurm() {
    const NOBODY: &str = "slurm_update error: Invalid user id";
    const NO_NODE: &str = "slurm_update error: Invalid node name specified";
    const NO_RESERVATION: &str = "slurm_update error: Requested reservation is invalid";
    const AWAY: &str = "slurm_update error: Unable to contact slurm controller (connect failure)";
    enum Look {
        Good,
        Told(&'static str),
        Hidden(&'static str),
    }
    for (private, node, reservation, expected) in [
        ("none", NO_NODE, "", Look::Good),
        ("none", NOBODY, NO_RESERVATION, Look::Told("AdminLevel=Operator")),
        ("none", NOBODY, NOBODY, Look::Told("AdminLevel=None")),
        ("none", AWAY, "", Look::Told("write can't be told: ")),
        ("jobs", NO_NODE, "", Look::Good),
        ("jobs", NOBODY, NO_RESERVATION, Look::Told("AdminLevel=Operator")),
        ("jobs", NOBODY, NOBODY, Look::Hidden("slurm hides jobs of others")),
        // Whether it does, nobody knows: no advice to set a level that may be there.
        ("jobs", AWAY, "", Look::Hidden("whether slurm hides jobs of others")),
        ("nodes", NOBODY, AWAY, Look::Hidden("whether slurm hides nodes of others")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let asked = folder.path().join("asked");
        let script = format!(
            r#"case "$*" in
               *NodeName=gpu-bridge-nobody*) echo node >> {asked}; echo '{node}' >&2; exit 1;;
               *ReservationName=gpu-bridge-nobody*) echo '{reservation}' >&2; exit 1;;
               *config) printf 'PrivateData = {private}\nSlurmUser = slurm(64030)\n'; exit;;
               esac; {}"#,
            good_scontrol(),
            asked = asked.display(),
        );
        let client = connect(cli(scripts(&script, &shows("24.11/jobs.txt", folder.path())))).unwrap();
        let looks = [client.look(&[]).await, client.look(&[]).await];
        for look in looks {
            match (&expected, look) {
                (Look::Good, Ok(look)) => assert_eq!(look.rights, None),
                (Look::Told(words), Ok(look)) => {
                    let rights = look.rights.unwrap_or_default();
                    assert!(rights.starts_with("GB0330") && rights.contains(words), "{rights}");
                }
                (Look::Hidden(words), Err(error @ Error::Hidden { .. })) => {
                    let text = error.to_string();
                    assert!(text.starts_with(words), "{text}");
                    let advises = text.contains("only root and slurm have rights");
                    assert_eq!(advises, [node, reservation] == [NOBODY; 2], "{text}");
                    // An alarm's text: what is another one each time would be raised each time.
                    assert!(!text.contains("gpu-bridge-nobody-"), "{text}");
                }
                (_, look) => panic!("{private} {node} {reservation}: {look:?}"),
            }
        }
        // Slurm's answer counts for a while; where there was none, it is asked again.
        let times = std::fs::read_to_string(&asked).unwrap().lines().count();
        assert_eq!(times, if [node, reservation].contains(&AWAY) { 2 } else { 1 }, "{private} {node}");
    }
}

/// squeue as another program than the one beside scontrol, of which this is what its configuration tells.
fn with_squeue_apart(config: &str, folder: &Path) -> Options {
    let scontrol = format!(r#"case "$*" in *config) {config};; *) {};; esac"#, good_scontrol());
    let (scontrol, squeue) = scripts(&scontrol, &shows("24.11/jobs.txt", folder));
    // One script still, by a name that is not scontrol's with squeue in its place.
    let by_path = |mut argv: Vec<String>, name: &str| {
        argv[2] = argv[2].replace("$0 = squeue", "$0 = /b/squeue");
        name.clone_into(&mut argv[3]);
        argv
    };
    cli((by_path(scontrol, "/a/scontrol"), squeue.map(|argv| by_path(argv, "/b/squeue"))))
}

/// The two may be of two users, whatever their words say: scontrol a script with sudo in it, squeue none.
#[tokio::test]
async fn scontrols_proof_counts_for_no_other_squeue_than_the_one_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let of = |private| {
        let config = format!(r"printf 'PrivateData = {private}\nSlurmUser = slurm(64030)\n'");
        connect(with_squeue_apart(&config, folder.path())).unwrap()
    };
    assert!(of("accounts,usage").look(&[]).await.is_ok());
    let error = of("jobs,usage").look(&[]).await.unwrap_err();
    assert!(matches!(&error, Error::Hidden { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("leave squeue out of [slurm]") && text.contains("/a/squeue"), "{text}");
}

#[tokio::test]
async fn a_configuration_that_cannot_be_read_is_told_as_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let client = connect(with_squeue_apart("echo 'no such luck' >&2; exit 1", folder.path())).unwrap();
    let error = client.look(&[]).await.unwrap_err();
    assert!(matches!(&error, Error::Hidden { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("can't be told") && text.ends_with("no such luck"), "{text}");
    assert!(!text.contains("adminlevel") && !text.contains("root and SlurmUser"), "{text}");
}

#[tokio::test]
async fn jobs_that_are_yet_to_come_are_of_another_cluster() {
    let config = |next: &str| {
        format!(
            r"printf 'PrivateData = none\nFirstJobId = 1\nMaxJobId = 67043328\nNEXT_JOB_ID = %s\n' {next}"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    // Jobs come and the counter moves on while we look.
    let later = format!("$(if [ -e {0} ]; then echo 1000; else touch {0}; echo 5; fi)", asked.display());
    for (next, good) in [("5", false), ("1000", true), (later.as_str(), true)] {
        let client = connect(with_squeue_apart(&config(next), folder.path())).unwrap();
        match client.look(&[]).await {
            Ok(_) => assert!(good, "{next}"),
            Err(error) => {
                let text = error.to_string();
                assert!(!good && error.code() == "GB0307" && text.contains("jobs of the cluster"), "{text}");
            }
        }
    }
    assert!(asked.exists());
    // slurmrestd may be of another cluster, too; squeue beside scontrol can't be.
    for (version, good) in [("v0.0.42", false), ("v0.0.40", true)] {
        let world = World::of("24.11", &[version]).await;
        let more = |next: u32| {
            let text = format!("FirstJobId = 1\nMaxJobId = 67043328\nNEXT_JOB_ID = {next}\n");
            std::fs::write(world.folder.path().join("config"), text).unwrap();
        };
        more(1000);
        assert_eq!(world.client.look(&[]).await.unwrap().next_job_id, Some(JobId(1000)));
        more(5);
        assert_eq!(world.client.look(&[]).await.is_ok(), good, "{version}");
    }
}

#[tokio::test]
async fn a_level_that_was_taken_away_is_noticed_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let level = folder.path().join("level");
    let script = format!(
        r#"case "$*" in
           *nobody*) grep -q Operator {level} && case "$*" in *Reservation*) echo 'Requested reservation is invalid' >&2; exit 1;; esac
              echo 'Invalid user id' >&2; exit 1;;
           *assoc_mgr*) echo "UserName=svc(2004) DefAccount=ml DefWckey= AdminLevel=$(cat {level})"; exit;;
           *config) printf 'PrivateData = jobs\nSlurmUser = slurm(64030)\nAccountingStorageType = accounting_storage/slurmdbd\n'; exit;;
           esac; {}"#,
        good_scontrol(),
        level = level.display(),
    );
    let client = connect(cli(scripts(&script, &shows("24.11/jobs.txt", folder.path())))).unwrap();
    std::fs::write(&level, "Operator").unwrap();
    assert!(client.look(&[]).await.is_ok());
    std::fs::write(&level, "None").unwrap();
    assert!(matches!(client.look(&[]).await, Err(Error::Hidden { .. })));
}

#[tokio::test]
async fn of_several_numbers_one_that_is_unknown_hides_no_other() {
    // A release that refuses all for one: none does so today.
    let squeue = format!(
        r#"case "$*" in *--jobs=*,*|*--jobs=999) echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1;; esac
           for a in "$@"; do case $a in --jobs=*) j=${{a#--jobs=}};; --Format=*) n=${{a##*tres-per-task:}};; esac; done
           sed "s/|nonce|/$n/g" {} | grep "^JOBID\|^$j|""#,
        fixtures().join("cli/22.05/jobs.txt").display(),
    );
    let (scontrol, squeue) = scripts("true", &squeue);
    let commands = Commands::new(&Options { scontrol, squeue, ..Options::default() }).unwrap();
    let listed = commands.jobs(&[JobId(999), JobId(4), JobId(7), JobId(998)]).await;
    let ids: Vec<u32> = listed.unwrap().jobs.keys().map(|id| id.0).collect();
    assert_eq!(ids, [4, 7]);
}

#[tokio::test]
async fn a_connection_is_used_again_only_after_a_clean_answer() {
    let world = World::of("26.05", &["v0.0.45"]).await;
    world.client.source.partitions().await.unwrap();
    let mut connection = world.newest_connection();
    for (status, spoiled) in [
        (StatusCode::OK, r#"{"nodes":[],"errors":[{"error_number":0,"error":"No error"}]}"#),
        (StatusCode::OK, r#"{"nodes":[{"name":"gpu1""#),
        (StatusCode::OK, "<html>"),
        (StatusCode::NOT_FOUND, r#"{"errors":[{"error_number":2017}]}"#),
    ] {
        world.client.source.partitions().await.unwrap();
        assert_eq!(world.newest_connection(), connection, "after a clean answer");
        world.instead("nodes", status, spoiled);
        assert!(world.client.source.nodes().await.is_err(), "{spoiled}");
        assert_eq!(world.newest_connection(), connection);
        world.client.source.partitions().await.unwrap();
        assert_ne!(world.newest_connection(), connection, "after {status} {spoiled}");
        connection = world.newest_connection();
    }
    // A write's answer too.
    world.instead("node/gpu1", StatusCode::OK, r#"{"errors":[{"error_number":2028}]}"#);
    assert!(world.client.write_node(&"gpu1".into(), &NodeWrite::Undrain).await.is_err());
    world.client.source.partitions().await.unwrap();
    assert_ne!(world.newest_connection(), connection);
}

#[tokio::test]
async fn a_job_that_stands_but_is_not_known_by_its_number_fails_the_look() {
    let unknown = r#"{"jobs":[],"errors":[{"error_number":2017,"error":"Invalid job id specified"}]}"#;
    let states = |states: &str| format!(r#"{{"jobs":[{states}]}}"#);
    let running = states(r#"{"job_id":"1","state":["RUNNING"]},{"job_id":"15","state":["COMPLETED"]}"#);
    let world = World::of("24.11", &["v0.0.42"]).await;
    world.instead("jobs/state", StatusCode::OK, &running);
    world.instead("job/1", StatusCode::NOT_FOUND, unknown);
    world.instead("job/15", StatusCode::NOT_FOUND, unknown);
    let look = world.client.look(&[]).await;
    assert!(
        matches!(&look, Err(Error::Unreadable { expected, .. }) if expected == "the record of job 1, which is RUNNING by jobs/state"),
        "{look:?}"
    );
    // One that has ended may be unknown, watched or not.
    world.instead("jobs/state", StatusCode::OK, &states(r#"{"job_id":"15","state":["COMPLETED"]}"#));
    assert_eq!(world.client.look(&[JobId(1), JobId(15)]).await.unwrap().jobs.len(), 0);
    // What is not found for another cause is not an ended job.
    world.instead("job/1", StatusCode::NOT_FOUND, r#"{"errors":[{"error_number":2018}]}"#);
    assert!(matches!(world.client.look(&[JobId(1)]).await, Err(Error::NotFound { number: 2018, .. })));
}

#[tokio::test]
async fn a_node_that_cannot_be_read_is_seen_by_none_and_never_written() {
    let world = World::of("24.11", &["v0.0.42"]).await;
    let nodes = r#"{"nodes":[{"name":"gpu1","state":7},{"name":"gpu2","state":["IDLE"],"gres":"gpu:4("}]}"#;
    world.instead("nodes", StatusCode::OK, nodes);
    let look = world.client.look(&[]).await.unwrap();
    let gpu1 = SlurmNodeName::from("gpu1");
    assert_eq!(look.nodes.keys().map(SlurmNodeName::as_str).collect::<Vec<_>>(), ["gpu2"]);
    assert_eq!(look.unreadable_nodes.keys().collect::<Vec<_>>(), [&gpu1]);
    let before = world.written();
    let reason = "gpu-bridge:h0042 e7 window".to_owned();
    for action in [
        Action::Drain { node: gpu1.clone(), reason: reason.clone(), over: None },
        Action::Undrain { node: gpu1.clone(), reason },
    ] {
        let done = world.client.act(&action).await;
        let refused =
            matches!(&done, Err(Error::NothingWritten(why)) if matches!(**why, Error::Unreadable { .. }));
        assert!(refused, "{action:?}: {done:?}");
    }
    assert_eq!(world.written(), before);
}

#[tokio::test]
async fn what_rest_cannot_write_goes_through_scontrol() {
    let drain = Action::Drain {
        node: SlurmNodeName::from("gpu1"),
        reason: "gpu-bridge:h0042 e7 window".to_owned(),
        over: None,
    };
    let arguments = ["update", "NodeName=gpu1", "State=DRAIN", "Reason=gpu-bridge:h0042 e7 window"];
    for (release, version, posts, scontrol) in [
        ("22.05", "v0.0.37", vec![], arguments.to_vec()),
        ("22.05", "v0.0.38", vec![], arguments.to_vec()),
        ("23.11", "v0.0.39", vec!["POST /slurm/v0.0.39/node/gpu1"], vec![]),
        ("26.05", "v0.0.45", vec!["POST /slurm/v0.0.45/node/gpu1"], vec![]),
    ] {
        let world = World::of(release, &[version]).await;
        // The saved answers do not change: a write that is not seen done is an error by either mouth.
        let done = world.client.act(&drain).await;
        assert!(matches!(done, Err(Error::NotSeen { .. })), "{version}: {done:?}");
        let written = world.written();
        assert_eq!(written.0, posts, "{version}");
        assert_eq!(written.1, scontrol, "{version}");
    }
}

#[tokio::test]
async fn a_hundred_thousand_waiting_jobs_are_listed_within_bounds() {
    const JOBS: u32 = 100_000;
    let world = World::of("24.11", &["v0.0.40"]).await;
    let line = |id: u32| {
        let gres = if id.is_multiple_of(2) { "gres/gpu:8" } else { "N/A" };
        let checked =
            format!("{id}|PENDING|alice|main|4|||1-00:00:00|1796051453|N/A|N/A|1|{id}|N/A|N/A|N/A|4|cpu=4");
        format!("{checked}|Priority|nonce|{gres}|nonce|N/A|nonce|N/A|nonce|\n")
    };
    let heading = crate::slurm::shape::squeue_heading("|nonce|");
    let text: String = std::iter::once(heading).chain((1..=JOBS).map(line)).collect();
    let file = world.folder.path().join("jobs.txt");
    std::fs::write(&file, &text).unwrap();
    let (scontrol, squeue) = scripts("true", &shows(file.to_str().unwrap(), world.folder.path()));
    let commands = Commands::new(&Options { scontrol, squeue, ..Options::default() }).unwrap();
    let listed = commands.jobs(&[JobId(1)]).await.unwrap();
    assert_eq!((listed.jobs.len(), listed.pending_unread), (20_001, 79_999));
    // Those that want GPUs first, then the newest; the watched one in any case.
    assert!(listed.jobs.contains_key(&JobId(1)) && listed.jobs.contains_key(&JobId(JOBS)));
    assert_eq!(listed.jobs.values().filter(|job| job.gpus_per_node == 8).count(), 20_000);
    // 17 MB of text at most, with the random words in it; REST's answer would be 800 MB.
    assert!(text.len() < 17 << 20, "{}", text.len());
}
