//! Whom Slurm lets see and do what: a user without rights is told apart at the first look, and where jobs of others are hidden
//! from it, nothing that is seen counts.

use std::sync::Arc;

use anyhow::{Result, ensure};
use gpu_bridge::slurm::{Client, Error, Options, Slurm as _, TokenSource, connect};
use gpu_bridge_core::facts::slurm::JobState;
use gpu_bridge_core::ids::JobId;
use gpu_bridge_labs::slurm::Lab;

use super::{LIMIT, Site};

/// Hides jobs and reservations in slurm.conf at the end: all versions are asked before and after.
pub(super) async fn are_told(lab: &Lab, sites: &[Arc<Site>]) -> Result<()> {
    let job = hidden_job(lab, &sites[0]).await?;
    for site in sites {
        // Without slurmdbd only root and SlurmUser have rights. Up to v0.0.38 the token's user only reads.
        let alice = as_alice(site).await?;
        let look = alice.look(&[]).await?;
        assert_eq!(look.jobs[&job].state, JobState::Suspended, "{}", site.api);
        let says = look.rights.as_deref().unwrap_or_default();
        let told = says.starts_with("GB0330 ") && says.contains("only root and slurm have rights");
        ensure!(told == (site.by_commands() || !site.writes_by_scontrol()), "{} {says:?}", site.api);
        assert_eq!(site.client.look(&[]).await?.rights, None, "{}", site.api);
        // Whoever runs scontrol beside slurmrestd writes with it up to v0.0.42.
        let look = by_commands_of_alice(site)?.look(&[]).await?;
        ensure!(look.rights.is_some() == (site.api <= "v0.0.42"), "{} {:?}", site.api, look.rights);
    }

    let conf = lab.folder().join("slurm.conf");
    let text = std::fs::read_to_string(&conf)?;
    std::fs::write(&conf, text.clone() + "PrivateData=jobs,reservations\n")?;
    lab.run(&["scontrol", "reconfigure"]).await?;
    for site in sites {
        // Nothing but the suspended job told that the node is taken, and alice does not see it.
        let hidden = as_alice(site).await?.look(&[]).await.unwrap_err();
        ensure!(matches!(&hidden, Error::Hidden { .. }), "{} {hidden}", site.api);
        let whom = if site.by_commands() { "that runs scontrol" } else { "alice" };
        let says = format!("jobs and reservations of others from user {whom}");
        assert!(hidden.to_string().contains(&says), "{hidden}");
        // Behind a change of user, as sudo's, it is that user who must see: not the daemon's own, root.
        match by_commands_of_alice(site)?.look(&[]).await {
            Ok(look) => {
                ensure!(!site.lists_by_squeue(), "{}", site.api);
                assert_eq!(look.jobs[&job].state, JobState::Suspended, "{}", site.api);
            }
            Err(hidden) => {
                let known = matches!(hidden, Error::Hidden { .. }) && site.lists_by_squeue();
                ensure!(known, "{} {hidden}", site.api);
            }
        }
        // From SlurmUser nothing is hidden.
        assert_eq!(site.client.look(&[]).await?.jobs[&job].state, JobState::Suspended, "{}", site.api);
        if site.by_commands() {
            continue;
        }
        // slurmrestd on the socket runs as a user without rights, whatever `user` says.
        let url = format!("unix://{}", lab.rest_socket().display());
        let local = connect(Options { url, token: None, ..site.options() })?;
        let hidden = local.look(&[]).await.unwrap_err();
        ensure!(matches!(&hidden, Error::Hidden { .. }), "{} {hidden}", site.api);
        // Whoever can't ask whether something is hidden, believes nothing of a version that lists jobs with gaps.
        let scontrol = lab.slurm_command("root", "false");
        let squeue = Some(lab.slurm_command("root", "squeue"));
        let deaf = connect(Options { scontrol, squeue, ..site.options() })?.look(&[]).await;
        match deaf {
            Ok(_) => ensure!(!site.lists_by_squeue(), "{}", site.api),
            Err(error) => ensure!(matches!(error, Error::Hidden { .. }) && site.lists_by_squeue(), "{error}"),
        }
    }
    std::fs::write(&conf, text)?;
    lab.run(&["scontrol", "reconfigure"]).await?;
    lab.run(&["scancel", &job.to_string()]).await?;
    Ok(())
}

/// Bob's, suspended: on 22.05 its node reads IDLE then.
async fn hidden_job(lab: &Lab, site: &Site) -> Result<JobId> {
    let node = site.nodes[5].as_str();
    let job = lab.submit("bob", &["-w", node, "-t", "60"], "sleep 3600").await?;
    lab.job_reaches(job, "RUNNING", LIMIT).await?;
    lab.run(&["scontrol", "suspend", &job.to_string()]).await?;
    lab.job_reaches(job, "SUSPENDED", LIMIT).await?;
    Ok(JobId(job))
}

/// The commands run as alice, whatever slurmrestd is asked as.
fn by_commands_of_alice(site: &Site) -> Result<Client> {
    Ok(connect(Options { scontrol: site.lab.slurm_command("alice", "scontrol"), ..site.options() })?)
}

async fn as_alice(site: &Site) -> Result<Client> {
    if site.by_commands() {
        return by_commands_of_alice(site);
    }
    let token = site.folder.path().join("alice");
    std::fs::write(&token, site.lab.token("alice", std::time::Duration::from_mins(10)).await?)?;
    Ok(connect(Options { user: "alice".into(), token: Some(TokenSource::File(token)), ..site.options() })?)
}
