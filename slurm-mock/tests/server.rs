//! The server over real sockets: listeners, the clock, every fault, and the scontrol program.

#![allow(clippy::unwrap_used, reason = "helpers of tests may")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use slurm_mock::{
    Cluster,
    model::JobSpec,
    rest::faults::{Action, Fault},
    server::{self, Handle, Options},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UnixStream},
};

const START: i64 = 1_796_000_000;

/// A server whose clock stands still until it is moved.
async fn serve() -> (Handle, Arc<AtomicI64>) {
    let seconds = Arc::new(AtomicI64::new(START));
    let clock = seconds.clone();
    let cluster = Cluster::uniform(2, 4, Timestamp::from_second(START).unwrap());
    let now = move || Timestamp::from_second(clock.load(Ordering::SeqCst)).unwrap();
    (server::serve(Options::new(cluster, Arc::new(now))).await.unwrap(), seconds)
}

fn get(path: &str) -> String {
    format!("GET /slurm/v0.0.42/{path} HTTP/1.1\r\nHost: x\r\nX-SLURM-USER-TOKEN: mock-token\r\n\r\n")
}

/// Sends, then reads until the server closes (or for a moment, if it does not).
async fn exchange(handle: &Handle, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(handle.url().trim_start_matches("http://")).await?;
    stream.write_all(request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1).as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8(answer).unwrap())
}

#[tokio::test]
async fn requests_see_the_clock() {
    let (handle, seconds) = serve().await;
    handle.cluster(|c| c.submit(JobSpec::new("alice", 1, 4, SignedDuration::from_secs(60))).unwrap());
    assert!(exchange(&handle, &get("job/1")).await.unwrap().contains("\"RUNNING\""));
    seconds.fetch_add(100, Ordering::SeqCst);
    assert!(exchange(&handle, &get("job/1")).await.unwrap().contains("\"COMPLETED\""));
    assert_eq!(handle.requests(), 2);
}

#[tokio::test]
async fn a_connection_serves_many_requests() {
    let (handle, _) = serve().await;
    let client = reqwest::Client::new();
    for _ in 0..3 {
        let url = format!("{}/slurm/v0.0.42/nodes", handle.url());
        let answer = client.get(url).header("X-SLURM-USER-TOKEN", "mock-token").send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.headers().contains_key("content-length"), "never chunked");
    }
}

#[tokio::test]
async fn faults_on_the_wire() {
    let drain = "{\"state\":[\"DRAIN\"],\"reason\":\"x\"}";
    let post = format!(
        "POST /slurm/v0.0.42/node/gpu1 HTTP/1.1\r\nHost: x\r\nX-SLURM-USER-TOKEN: mock-token\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n{drain}",
        drain.len()
    );
    for (action, applied, starts, ends) in [
        (None, true, "HTTP/1.1 200", "}"),
        (Some(Action::ApplyButFail), true, "HTTP/1.1 500", "}"),
        (Some(Action::CutBody(10)), true, "HTTP/1.1 200", "\r\n\r\n{\"errors\":"),
        (Some(Action::LateAnswer(Duration::from_millis(1))), true, "HTTP/1.1 200", "}"),
        (Some(Action::Delay(Duration::from_millis(1))), true, "HTTP/1.1 200", "}"),
        (Some(Action::SecondResponse), true, "HTTP/1.1 200", "\r\n\r\nRequested reservation is invalid"),
        (Some(Action::HugeBody(100_000)), true, "HTTP/1.1 200", "          "),
        (Some(Action::Status(401)), false, "HTTP/1.1 401", "Authentication failure"),
        (Some(Action::Status(511)), false, "HTTP/1.1 511", "}"),
        (Some(Action::Html), false, "HTTP/1.1 200", "</html>"),
        (Some(Action::NotModified), false, "HTTP/1.1 304", "\r\n\r\n"),
    ] {
        let (handle, _) = serve().await;
        if let Some(action) = &action {
            handle.inject(Fault::once("/node/", action.clone()));
        }
        let answer = exchange(&handle, &post).await.unwrap();
        assert!(answer.starts_with(starts), "{action:?}: {answer}");
        assert!(answer.ends_with(ends), "{action:?}: {answer}");
        let drained = handle.cluster(|c| c.node(&"gpu1".into()).unwrap().reason.is_some());
        assert_eq!(drained, applied, "{action:?}");
    }
    for (action, applied) in [(Action::Reset, false), (Action::LoseAnswer, true)] {
        let (handle, _) = serve().await;
        handle.inject(Fault::once("/node/", action));
        let error = exchange(&handle, &post).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        let drained = handle.cluster(|c| c.node(&"gpu1".into()).unwrap().reason.is_some());
        assert_eq!(drained, applied);
    }
}

#[tokio::test]
async fn a_stale_answer_is_the_last_one() {
    let (handle, _) = serve().await;
    let before = exchange(&handle, &get("nodes")).await.unwrap();
    handle.cluster(|c| c.submit(JobSpec::new("alice", 1, 4, SignedDuration::from_secs(60))).unwrap());
    handle.inject(Fault::once("/nodes", Action::Stale));
    let body = |answer: String| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    let before = body(before);
    assert_eq!(body(exchange(&handle, &get("nodes")).await.unwrap()), before);
    assert_ne!(body(exchange(&handle, &get("nodes")).await.unwrap()), before);
}

#[tokio::test]
async fn a_delay_delays() {
    let (handle, _) = serve().await;
    handle.inject(Fault::once("/ping", Action::Delay(Duration::from_millis(50))));
    let start = Instant::now();
    exchange(&handle, &get("ping")).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[tokio::test]
async fn the_unix_socket_needs_no_token_and_goes_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slurmrestd.sock");
    let cluster = Cluster::uniform(1, 4, Timestamp::from_second(START).unwrap());
    let clock = Arc::new(|| Timestamp::from_second(START).unwrap());
    let options = Options { socket: Some(path.clone()), ..Options::new(cluster, clock) };
    let handle = server::serve(options).await.unwrap();
    assert_eq!(handle.socket_path(), Some(path.as_path()));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(b"GET /slurm/v0.0.42/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"gpu1\""), "{answer}");
    let output = scontrol(&format!("unix:{}", path.display()), &["ping"]).await;
    assert_eq!(output.status.code(), Some(0));
    drop(handle);
    assert!(!path.exists());
}

async fn scontrol(url: &str, argv: &[&str]) -> std::process::Output {
    tokio::process::Command::new(env!("CARGO_BIN_EXE_mock-scontrol"))
        .env("SLURM_MOCK_URL", url)
        .args(argv)
        .output()
        .await
        .unwrap()
}

#[tokio::test]
async fn the_scontrol_program_speaks_to_the_server() {
    let (handle, _) = serve().await;
    let create = [
        "create",
        "reservation=r1",
        "starttime=now",
        "duration=10",
        "nodes=gpu1",
        "users=root",
        "flags=maint",
    ];
    let output = scontrol(&handle.url(), &create).await;
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"Reservation created: r1\n".as_slice())
    );
    assert!(handle.cluster(|c| c.reservation("r1").is_some()));
    let output = scontrol(&handle.url(), &create).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stderr, b"Error creating the reservation: Duplicate reservation name\n");
    let output = scontrol("http://127.0.0.1:1", &["ping"]).await;
    assert_eq!(output.status.code(), Some(1));
}
