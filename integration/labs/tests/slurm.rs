//! The real Slurm lab. Where this machine can't run one, each test says so and ends: `cargo xtask test` lists it as skipped.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test, helpers included")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use gpu_bridge_labs::slurm::{Daemon, Lab, Node, Options, Release, unsupported};
use gpu_bridge_labs::wait_until;

const LIMIT: Duration = Duration::from_mins(1);

fn skip() -> bool {
    let reason = unsupported();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

fn one_node() -> Options {
    Options { nodes: vec![Node::new("gpu1")], ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_and_a_drained_node_stays_drained_over_restarts() {
    if skip() {
        return;
    }
    let lab = Lab::up(Options::default()).await.unwrap();
    assert!(lab.version().await.unwrap().contains("24.11"));

    let job = lab.submit("alice", &["--gres=gpu:4", "-w", "gpu2"], "sleep 300").await.unwrap();
    lab.job_reaches(job, "RUNNING", LIMIT).await.unwrap();
    let mut drain = lab.scontrol_command();
    drain.extend(["update", "nodename=gpu2", "state=drain", "reason=a lab's test"].map(str::to_owned));
    gpu_bridge_labs::command::output(&drain, LIMIT).await.unwrap().ok().unwrap();
    assert_eq!(lab.node_state("gpu2").await.unwrap(), "MIXED+DRAIN");
    lab.run(&["scancel", &job.to_string()]).await.unwrap();
    lab.job_reaches(job, "CANCELLED", LIMIT).await.unwrap();
    lab.node_reaches("gpu2", |state| state == "IDLE+DRAIN", LIMIT).await.unwrap();

    // slurmctld writes its state some seconds after the change (5 at most): killed before, it comes back without the drain.
    let state = lab.folder().join("state/node_state");
    wait_until("the drain on disk", LIMIT, async || {
        let bytes = std::fs::read(&state).map_err(|error| error.to_string())?;
        let reason: &[u8] = b"a lab's test";
        bytes
            .windows(reason.len())
            .any(|part| part == reason)
            .then_some(())
            .ok_or_else(|| "not yet".to_owned())
    })
    .await
    .unwrap();
    lab.kill9(&Daemon::Slurmctld).await.unwrap();
    assert!(!lab.alive(&Daemon::Slurmctld).await.unwrap());
    lab.start(&Daemon::Slurmctld).await.unwrap();
    lab.node_reaches("gpu2", |state| state == "IDLE+DRAIN", LIMIT).await.unwrap();

    for daemon in [Daemon::Slurmd("gpu1".to_owned()), Daemon::Slurmrestd, Daemon::SlurmrestdLocal] {
        lab.pause(&daemon).await.unwrap();
        assert!(lab.alive(&daemon).await.unwrap());
        lab.resume(&daemon).await.unwrap();
        lab.stop(&daemon).await.unwrap();
        assert!(!lab.alive(&daemon).await.unwrap());
        lab.start(&daemon).await.unwrap();
    }

    // REST answers with a token, and over the socket without one.
    let token = lab.token("slurm", Duration::from_mins(10)).await.unwrap();
    let address = lab.rest_url().strip_prefix("http://").unwrap().to_owned();
    let path = "/slurm/v0.0.42/nodes";
    let local = UnixStream::connect(lab.rest_socket()).unwrap();
    for body in [
        get(TcpStream::connect(address).unwrap(), path, &format!("X-SLURM-USER-TOKEN: {token}\r\n")),
        get(local, path, ""),
    ] {
        assert_eq!(body["nodes"].as_array().unwrap().len(), 4, "{body}");
    }
}

fn call(mut connection: impl Read + Write, request: &str) -> String {
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// GET over a connection that the server closes after its answer.
fn get(connection: impl Read + Write, path: &str, header: &str) -> serde_json::Value {
    let request = format!("GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n{header}\r\n");
    let answer = call(connection, &request);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    // It writes a header after the body.
    let mut values = serde_json::Deserializer::from_str(body).into_iter();
    values.next().unwrap().unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_labs_at_once_are_strangers_and_go_with_their_handles() {
    if skip() {
        return;
    }
    let (one, two) = tokio::join!(Lab::up(one_node()), Lab::up(one_node()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.rest_url(), two.rest_url());
    one.run(&["scontrol", "update", "nodename=gpu1", "state=drain", "reason=mine"]).await.unwrap();
    assert_eq!(one.node_state("gpu1").await.unwrap(), "IDLE+DRAIN");
    assert_eq!(two.node_state("gpu1").await.unwrap(), "IDLE");

    let (folder, prefix) = (one.folder().to_owned(), one.command_prefix());
    drop(one);
    assert!(!folder.exists());
    let dead = [prefix, vec!["true".to_owned()]].concat();
    assert!(gpu_bridge_labs::command::output(&dead, LIMIT).await.unwrap().ok().is_err());
    assert_eq!(two.node_state("gpu1").await.unwrap(), "IDLE");
}

/// Not a test of its own: the process that `a_lab_goes_with_a_killed_owner` starts and kills.
#[tokio::test]
async fn owner_to_be_killed() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let lab = Lab::up(one_node()).await.unwrap();
    println!("\nLAB {} {}", lab.folder().display(), lab.command_prefix().join(" "));
    std::future::pending::<()>().await;
}

const OWNER: &str = "GPU_BRIDGE_LABS_TEST_OWNER";

#[tokio::test(flavor = "multi_thread")]
async fn a_lab_goes_with_a_killed_owner() {
    if skip() {
        return;
    }
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner_to_be_killed", "--nocapture"])
        .env(OWNER, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| line.unwrap().strip_prefix("LAB ").map(str::to_owned)).unwrap();
    let (folder, prefix) = line.split_once(' ').unwrap();
    let inside: Vec<&str> = prefix.split(' ').chain(["scontrol", "ping"]).collect();
    gpu_bridge_labs::command::output(&inside, LIMIT).await.unwrap().ok().unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until("the end of the lab", LIMIT, async || {
        let output = gpu_bridge_labs::command::output(&inside, LIMIT).await.unwrap();
        if output.status.success() { Err("it lives".to_owned()) } else { Ok(()) }
    })
    .await
    .unwrap();
    // The next lab clears away what is left.
    let _next = Lab::up(one_node()).await.unwrap();
    let left = std::fs::read_to_string(format!("{folder}/lab.json")).unwrap_or_default();
    assert!(!left.contains(&format!("\"pid\": {}", inside[2])), "{left}");
}

#[tokio::test]
async fn the_local_slurmrestd_acts_as_the_user_that_it_runs_as() {
    if skip() {
        return;
    }
    for (user, state) in [("restd", "IDLE"), ("slurm", "IDLE+DRAIN")] {
        let lab = Lab::up(Options { local_rest_user: user.to_owned(), ..one_node() }).await.unwrap();
        let socket = UnixStream::connect(lab.rest_socket()).unwrap();
        let body = r#"{"state":["DRAIN"],"reason":"over the socket"}"#;
        let request = format!(
            "POST /slurm/v0.0.42/node/gpu1 HTTP/1.1\r\nHost: lab\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = call(socket, &request);
        assert_eq!(lab.node_state("gpu1").await.unwrap(), state, "{answer}");
    }
}

#[tokio::test]
async fn a_lab_that_cannot_start_says_why() {
    if skip() {
        return;
    }
    let broken = Options { extra: vec!["NoSuchSetting=1".to_owned()], ..one_node() };
    let said = Lab::up(broken).await.unwrap_err().to_string();
    assert!(said.contains("NoSuchSetting"), "{said}");
}

#[tokio::test]
async fn every_release_runs_jobs() {
    if skip() {
        return;
    }
    for release in Release::ALL {
        let lab = Lab::up(Options { release, ..Options::default() }).await.unwrap();
        let version = lab.version().await.unwrap();
        eprintln!("{version}");
        assert!(version.contains(release.name()), "{version} is not {}", release.name());
        let job = lab.submit("bob", &["--gres=gpu:a100:1", "-w", "gpu3"], "sleep 300").await.unwrap();
        lab.job_reaches(job, "RUNNING", LIMIT).await.unwrap();
        let token = lab.token("slurm", Duration::from_mins(10)).await.unwrap();
        let address = lab.rest_url().strip_prefix("http://").unwrap().to_owned();
        let path = format!("/slurm/{}/nodes", release.newest_api());
        let header = format!("X-SLURM-USER-NAME: slurm\r\nX-SLURM-USER-TOKEN: {token}\r\n");
        let body = get(TcpStream::connect(address).unwrap(), &path, &header);
        assert_eq!(body["nodes"].as_array().unwrap().len(), 4, "{body}");
    }
}
