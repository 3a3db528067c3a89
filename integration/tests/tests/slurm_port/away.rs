//! What is away, expired or not allowed is said so, in each version; the daemons are stopped once for all of them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use gpu_bridge::certainty::Certainty;
use gpu_bridge::slurm::scontrol::Failure;
use gpu_bridge::slurm::{Error, Options, Slurm as _, connect};
use gpu_bridge_core::facts::slurm::{BaseState, NodeFlag};
use gpu_bridge_labs::slurm::{Daemon, Lab};

use super::{OURS, Site, drain};

pub(super) async fn is_said_so(lab: &Lab, sites: &[Arc<Site>]) -> Result<()> {
    let by_rest = || sites.iter().filter(|site| !site.by_commands());
    try_join_all(by_rest().map(|site| credentials(site))).await?;
    for site in sites.iter().filter(|site| site.by_commands()) {
        commands(site).await?;
    }

    lab.stop(&Daemon::Slurmrestd).await?;
    for site in by_rest() {
        let away = site.client.look(&[]).await.unwrap_err();
        assert!(matches!(away, Error::Unreachable { .. }), "{} {away}", site.api);
        let refused = site.client.act(&drain(&site.nodes[0], OURS, None)).await.unwrap_err();
        assert_eq!(refused.certainty(), Certainty::NotDone, "{} {refused}", site.api);
    }
    for site in sites.iter().filter(|site| site.by_commands()) {
        site.client.look(&[]).await?;
    }
    lab.start(&Daemon::Slurmrestd).await?;
    for site in sites {
        site.client.look(&[]).await?;
    }

    lab.stop(&Daemon::Slurmctld).await?;
    try_join_all(sites.iter().map(|site| controller(site))).await?;
    lab.start(&Daemon::Slurmctld).await?;
    let own = |site: &Site, node: usize| site.nodes[node].clone();
    for site in sites {
        // What no test left down or drained.
        let node = own(site, 5);
        site.until(&[], |look| {
            look.nodes.get(&node).is_some_and(|node| {
                node.state == BaseState::Idle && !node.flags.contains(&NodeFlag::NotResponding)
            })
        })
        .await?;
    }
    Ok(())
}

async fn credentials(site: &Site) -> Result<()> {
    let Site { client, lab, api, .. } = site;
    let token_file = site.folder.path().join("token");
    let node = &site.nodes[0];
    let look = client.look(&[]).await?;

    // Over the socket the same is read.
    let url = format!("unix://{}", lab.rest_socket().display());
    let local = connect(Options { url, token: None, ..site.options() })?;
    assert_eq!(local.look(&[]).await?.partitions, look.partitions, "{api}");

    // An answer over the limit stops there, and the client works on.
    let small = connect(Options { max_response_bytes: 2_000, ..site.options() })?;
    for _ in 0..2 {
        let too_large = small.look(&[]).await.unwrap_err();
        assert!(matches!(too_large, Error::TooLarge { .. }), "{api} {too_large}");
    }

    // Expired, renewed; unreadable; not allowed.
    std::fs::write(&token_file, lab.token("slurm", Duration::from_secs(1)).await?)?;
    // Slurm judges a token by whole seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let expired = client.look(&[]).await.unwrap_err();
    let known = match *api {
        // 22.05 has the same words for a slurmctld that is away.
        "v0.0.37" | "v0.0.38" => matches!(expired, Error::TokenOrController { .. }),
        _ => matches!(expired, Error::Credentials { .. }),
    };
    ensure!(known, "{api} {expired}");
    let refused = client.act(&drain(node, OURS, None)).await.unwrap_err();
    assert_eq!(refused.certainty(), Certainty::NotDone, "{api} {refused}");
    std::fs::write(&token_file, lab.token("slurm", Duration::from_hours(1)).await?)?;
    client.look(&[]).await?;
    std::fs::rename(&token_file, site.folder.path().join("away"))?;
    assert!(matches!(client.look(&[]).await, Err(Error::Token { .. })));
    std::fs::write(&token_file, lab.token("alice", Duration::from_hours(1)).await?)?;
    let scontrol = lab.slurm_command("alice", "scontrol");
    let alice = connect(Options { user: "alice".into(), scontrol, ..site.options() })?;
    let forbidden = alice.act(&drain(node, OURS, None)).await.unwrap_err();
    let known = if site.writes_by_scontrol() {
        said(&forbidden, Failure::Forbidden)
    } else {
        matches!(forbidden, Error::Forbidden { .. })
    };
    ensure!(known, "{api} {forbidden}");
    std::fs::rename(site.folder.path().join("away"), &token_file)?;
    Ok(())
}

/// The same of the commands: too long an answer, and a user who may not write.
async fn commands(site: &Site) -> Result<()> {
    let Site { lab, api, .. } = site;
    let small = connect(Options { max_response_bytes: 2_000, ..site.options() })?;
    let too_large = small.look(&[]).await.unwrap_err();
    ensure!(too_large.code() == "GB0315", "{api} {too_large}");
    let scontrol = lab.slurm_command("alice", "scontrol");
    let alice = connect(Options { scontrol, ..site.options() })?;
    let forbidden = alice.act(&drain(&site.nodes[0], OURS, None)).await.unwrap_err();
    ensure!(said(&forbidden, Failure::Forbidden), "{api} {forbidden}");
    assert_eq!(forbidden.certainty(), Certainty::NotDone);
    Ok(())
}

fn said(error: &Error, failure: Failure) -> bool {
    matches!(error, Error::Scontrol(error) if error.failure() == Some(failure))
}

async fn controller(site: &Site) -> Result<()> {
    let Site { api, .. } = site;
    // slurmrestd waits 19 s for slurmctld, and 26.05 longer where several ask at the same time.
    let patient = connect(Options { timeout: Duration::from_mins(2), ..site.options() })?;
    let hasty = connect(Options { timeout: Duration::from_millis(500), ..site.options() })?;
    let (away, unanswered) = futures::join!(patient.look(&[]), hasty.look(&[]));
    let away = away.unwrap_err();
    let known = matches!(away, Error::ControllerAway { .. }) || said(&away, Failure::ControllerAway);
    ensure!(known, "{api} {away}");
    let unanswered = unanswered.unwrap_err();
    let known = match &unanswered {
        Error::Unanswered { .. } | Error::ControllerAway { .. } => !site.by_commands(),
        // Killed after its deadline.
        error => site.by_commands() && (error.code() == "GB0315" || said(error, Failure::ControllerAway)),
    };
    ensure!(known, "{api} {unanswered}");
    Ok(())
}
