//! `mock-scontrol`: scontrol for a running slurm-mock. SLURM_MOCK_URL says where it is
//! (`http://127.0.0.1:PORT` or `unix:/path`), SLURM_MOCK_USER who asks (root).

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use slurm_mock::server::{ScontrolAnswer, ScontrolRequest};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

const DEADLINE: Duration = Duration::from_mins(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match tokio::time::timeout(DEADLINE, run()).await {
        Ok(Ok(answer)) => {
            print!("{}", answer.stdout);
            eprint!("{}", answer.stderr);
            ExitCode::from(u8::try_from(answer.exit).unwrap_or(1))
        }
        Ok(Err(problem)) => {
            eprintln!("mock-scontrol: {problem:#}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("mock-scontrol: no answer within {} s", DEADLINE.as_secs());
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<ScontrolAnswer> {
    let url = std::env::var("SLURM_MOCK_URL").context("SLURM_MOCK_URL says where slurm-mock is")?;
    let user = std::env::var("SLURM_MOCK_USER").unwrap_or_else(|_| "root".to_owned());
    let request = ScontrolRequest { argv: std::env::args().skip(1).collect(), user };
    let body = Bytes::from(serde_json::to_vec(&request)?);
    if let Some(path) = url.strip_prefix("unix:") {
        let stream = UnixStream::connect(path).await.with_context(|| format!("cannot connect to {path}"))?;
        return ask(stream, body).await;
    }
    let Some(address) = url.strip_prefix("http://") else {
        bail!("SLURM_MOCK_URL is neither http:// nor unix:")
    };
    let address = address.trim_end_matches('/');
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
    ask(stream, body).await
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    body: Bytes,
) -> anyhow::Result<ScontrolAnswer> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post("/mock/scontrol").header("Host", "mock").body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    drop(sender);
    connection.abort();
    if !status.is_success() {
        bail!("slurm-mock answered {status}");
    }
    serde_json::from_slice(&body).context("slurm-mock answered nonsense")
}
