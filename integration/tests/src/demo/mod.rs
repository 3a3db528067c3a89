//! The promotion evening: Slurm jobs everywhere, a window that needs three nodes, inference pods, and the way back. Told
//! as a timeline, and judged at the end by what really happened in the two worlds, not by what the daemon says.

mod embedded;
mod real;
mod timeline;
mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use slurm_mock::server::{ScontrolAnswer, ScontrolRequest};

pub use embedded::run as embedded;
pub use real::run as real;

/// The daemon's scontrol on the embedded stand-in.
pub async fn scontrol(url: &str, argv: Vec<String>) -> anyhow::Result<ExitCode> {
    let request = ScontrolRequest { argv, user: "root".to_owned() };
    let response = reqwest::Client::new()
        .post(format!("{url}/mock/scontrol"))
        .timeout(Duration::from_secs(30))
        .body(serde_json::to_vec(&request)?)
        .send()
        .await
        .context("the stand-in does not answer")?;
    let answer: ScontrolAnswer = serde_json::from_slice(&response.bytes().await?)?;
    print!("{}", answer.stdout);
    eprint!("{}", answer.stderr);
    Ok(ExitCode::from(u8::try_from(answer.exit).unwrap_or(1)))
}
