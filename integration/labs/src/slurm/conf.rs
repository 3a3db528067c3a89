//! The configuration files of a lab, as text. What differs between releases stands here and in `daemons` only.

use std::fmt::Write as _;

use super::{HOST, INSIDE, Options, Release};

/// Ports of a lab, all on loopback.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) controller: u16,
    pub(super) rest: u16,
    pub(super) first_node: u16,
}

/// `slurm.conf`
pub(super) fn slurm(options: &Options, ports: Ports) -> String {
    let mut text = format!(
        "ClusterName=lab
SlurmctldHost={HOST}(127.0.0.1)
SlurmctldPort={controller}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={INSIDE}/munge/munge.sock
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={INSIDE}/jwt.key
SlurmctldPidFile={INSIDE}/pids/slurmctld.own
SlurmctldLogFile={INSIDE}/log/slurmctld.log
SlurmctldDebug=verbose
SlurmdPidFile={INSIDE}/pids/%n.own
SlurmdLogFile={INSIDE}/log/slurmd-%n.log
SlurmdSpoolDir={INSIDE}/spool/%n
SlurmdDebug=info
SlurmdParameters=config_overrides
StateSaveLocation={INSIDE}/state
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
PriorityType=priority/basic
ReturnToService=1
SlurmdTimeout=40
SlurmctldTimeout=30
InactiveLimit=0
KillWait=3
MinJobAge=600
MessageTimeout=20
DebugFlags=Reservation
RebootProgram=/bin/true
NodeName=DEFAULT Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=64000
",
        controller = ports.controller,
        scheduler = options.scheduler,
    );
    for (node, port) in options.nodes.iter().zip(ports.first_node..) {
        let _ = writeln!(
            text,
            "NodeName={} NodeHostname={HOST} NodeAddr=127.0.0.1 Port={port} Gres=gpu:{}:{}",
            node.name, node.gpu_type, node.gpus
        );
    }
    let names: Vec<&str> = options.nodes.iter().map(|node| node.name.as_str()).collect();
    let _ = writeln!(
        text,
        "PartitionName=main Nodes={} Default=YES MaxTime=7-0 DefaultTime=01:00:00 State=UP OverSubscribe=NO",
        names.join(",")
    );
    for line in &options.extra {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// `gres.conf`: a GPU without a device file is dropped by slurmd, and the node becomes INVALID.
pub(super) fn gres(options: &Options) -> String {
    let mut text = "AutoDetect=off\n".to_owned();
    for node in options.nodes.iter().filter(|node| node.gpus > 0) {
        let last = node.gpus - 1;
        let _ = writeln!(
            text,
            "NodeName={} Name=gpu Type={} File=/run/gpu/gpu[0-{last}]",
            node.name, node.gpu_type
        );
    }
    text
}

/// `cgroup.conf`: there is no cgroup of ours to use.
pub(super) fn cgroup(release: Release) -> &'static str {
    match release {
        Release::V22_05 => "CgroupPlugin=cgroup/v1\n",
        Release::V24_11 | Release::V26_05 => "CgroupPlugin=disabled\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::Node;

    #[test]
    fn every_node_has_its_port_and_its_gpus() {
        let options = Options {
            nodes: vec![Node::new("a"), Node { name: "b".to_owned(), gpu_type: "l4".to_owned(), gpus: 2 }],
            extra: vec!["PartitionName=debug Nodes=a".to_owned()],
            ..Options::default()
        };
        let text = slurm(&options, Ports { controller: 1, rest: 2, first_node: 10 });
        assert!(text.contains("NodeName=a NodeHostname=lab NodeAddr=127.0.0.1 Port=10 Gres=gpu:a100:4\n"));
        assert!(text.contains("NodeName=b NodeHostname=lab NodeAddr=127.0.0.1 Port=11 Gres=gpu:l4:2\n"));
        assert!(text.contains("PartitionName=main Nodes=a,b "));
        assert!(text.ends_with("PartitionName=debug Nodes=a\n"));
        assert!(gres(&options).contains("NodeName=b Name=gpu Type=l4 File=/run/gpu/gpu[0-1]\n"));
    }
}
