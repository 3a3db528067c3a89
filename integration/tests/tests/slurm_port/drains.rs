//! Drains: ours come and go, others' stay.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use gpu_bridge::certainty::Certainty;
use gpu_bridge::slurm::{Error, Slurm as _};
use gpu_bridge_core::facts::slurm::{BaseState, NodeFlag};
use gpu_bridge_core::ids::SlurmNodeName;
use jiff::SignedDuration;

use super::{NODES, OURS, Site, drain, undrain};

pub(super) async fn of_ours_come_and_go_and_others_stay(site: &Site) -> Result<()> {
    let Site { client, lab, nodes, .. } = site;
    let [first, second, third, ..] = nodes.as_slice() else { anyhow::bail!("{NODES} nodes") };
    match client.api_version().await {
        Ok(version) => assert_eq!(version, site.api),
        Err(error) => assert!(site.by_commands() && matches!(error, Error::Options(_)), "{error}"),
    }

    let look = client.look(&[]).await?;
    assert_eq!(look.nodes.len(), lab.options().nodes.len());
    let node = &look.nodes[first];
    assert_eq!((&node.state, node.gpus, node.gpus_used), (&BaseState::Idle, 4, Some(0)));
    assert_eq!((node.flags.len(), &node.reason), (0, &None));
    let main = &look.partitions["main"];
    assert_eq!(main.nodes.len(), look.nodes.len());
    assert_eq!((main.max_time, main.up), (Some(SignedDuration::from_hours(7 * 24)), true));

    // Ours, twice; then with another reason of ours; then away, twice.
    let writer = if site.writes_by_scontrol() { "root" } else { "slurm" };
    for reason in [OURS, OURS, "gpu-bridge:h0043 e8 x"] {
        client.act(&drain(first, reason, None)).await?;
        let look = client.look(&[]).await?;
        let node = &look.nodes[first];
        assert_eq!(node.flags, BTreeSet::from([NodeFlag::Drain]));
        let stands = node.reason.as_ref().context("a drained node has a reason")?;
        assert_eq!((stands.text.as_str(), stands.user.as_str()), (reason, writer));
        assert!(stands.at.is_some());
    }
    let refused = client.act(&undrain(first, OURS)).await.unwrap_err();
    assert!(matches!(&refused, Error::ForeignDrain { .. }), "{refused}");
    for _ in 0..2 {
        client.act(&undrain(first, "gpu-bridge:h0043 e8 x")).await?;
        assert!(!client.look(&[]).await?.nodes[first].flags.contains(&NodeFlag::Drain));
    }

    // An admin's.
    let update = |node: &SlurmNodeName, state: &str, reason: &str| {
        ["scontrol", "update", &format!("NodeName={node}"), state, reason].map(str::to_owned)
    };
    lab.run(&update(second, "State=DRAIN", "Reason=bad disk")).await?;
    for action in [drain(second, OURS, None), drain(second, OURS, Some("bad dis")), undrain(second, OURS)] {
        match client.act(&action).await {
            Err(error @ Error::ForeignDrain { .. }) => {
                assert_eq!(error.certainty(), Certainty::NotDone);
                assert!(
                    error.to_string().contains("bad disk") && error.to_string().contains("root"),
                    "{error}"
                );
            }
            other => anyhow::bail!("{action:?}: {other:?}"),
        }
    }
    client.act(&drain(second, OURS, Some("bad disk"))).await?;
    client.act(&undrain(second, OURS)).await?;

    // A DOWN node stays DOWN when our drain goes.
    lab.run(&update(third, "State=DOWN", "Reason=dead")).await?;
    client.act(&drain(third, OURS, None)).await?;
    client.act(&undrain(third, OURS)).await?;
    assert_eq!(client.look(&[]).await?.nodes[third].state, BaseState::Down);

    for name in ["gpu99", "gpu[1-2]", "gpu1,gpu2", "../ping"] {
        let error = client.act(&drain(&SlurmNodeName::from(name), OURS, None)).await.unwrap_err();
        assert_eq!(error.certainty(), Certainty::NotDone, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    Ok(())
}
