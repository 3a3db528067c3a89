//! Whom Slurm lets see and do what: a user without rights is told apart at the first look, and where jobs of others are hidden
//! from it, nothing that is seen counts.

use std::sync::Arc;

use anyhow::{Result, ensure};
use gpu_bridge::slurm::{Error, Options, Slurm as _, TokenSource, connect};
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
        ensure!(told != site.writes_by_scontrol(), "{} {says:?}", site.api);
        assert_eq!(site.client.look(&[]).await?.rights, None, "{}", site.api);
    }

    let conf = lab.folder().join("slurm.conf");
    let text = std::fs::read_to_string(&conf)?;
    std::fs::write(&conf, text.clone() + "PrivateData=jobs,reservations\n")?;
    lab.run(&["scontrol", "reconfigure"]).await?;
    for site in sites {
        // Nothing but the suspended job told that the node is taken, and alice does not see it.
        let hidden = as_alice(site).await?.look(&[]).await.unwrap_err();
        ensure!(matches!(&hidden, Error::Hidden { .. }), "{} {hidden}", site.api);
        assert!(hidden.to_string().contains("jobs and reservations of others from user alice"), "{hidden}");
        // slurmrestd on the socket runs as a user without rights, whatever `user` says.
        let url = format!("unix://{}", lab.rest_socket().display());
        let local = connect(Options { url, token: None, ..site.options() })?;
        let hidden = local.look(&[]).await.unwrap_err();
        ensure!(matches!(&hidden, Error::Hidden { .. }), "{} {hidden}", site.api);
        // From SlurmUser nothing is hidden.
        assert_eq!(site.client.look(&[]).await?.jobs[&job].state, JobState::Suspended, "{}", site.api);
        // Whoever can't ask whether something is hidden, believes nothing of a version that lists jobs with gaps.
        let deaf = connect(Options { scontrol: vec!["false".into()], ..site.options() })?.look(&[]).await;
        match deaf {
            Ok(_) => ensure!(site.api >= "v0.0.41", "{}", site.api),
            Err(error) => ensure!(matches!(error, Error::Hidden { .. }) && site.api < "v0.0.41", "{error}"),
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

async fn as_alice(site: &Site) -> Result<gpu_bridge::slurm::Client> {
    let token = site.folder.path().join("alice");
    std::fs::write(&token, site.lab.token("alice", std::time::Duration::from_mins(10)).await?)?;
    Ok(connect(Options { user: "alice".into(), token: Some(TokenSource::File(token)), ..site.options() })?)
}
