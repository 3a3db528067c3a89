//! scontrol's words, exit codes and texts.

#![allow(clippy::unwrap_used, reason = "helpers of tests may")]

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use slurm_mock::{
    Cluster,
    model::JobSpec,
    scontrol::{self, Output},
};

fn cluster() -> Cluster {
    Cluster::uniform(4, 4, Timestamp::from_second(1_796_010_000).unwrap())
}

fn run(c: &mut Cluster, command: &str) -> Output {
    let argv: Vec<String> = command
        .split('|')
        .flat_map(|quoted| {
            // A word between bars is one word, blanks and all.
            if quoted.starts_with("reason=") {
                vec![quoted.to_owned()]
            } else {
                quoted.split_whitespace().map(str::to_owned).collect()
            }
        })
        .collect();
    scontrol::run(c, &argv)
}

#[test]
fn commands_and_what_they_say() {
    let mut c = cluster();
    for (command, exit, stdout, stderr) in [
        ("ping", 0, "Slurmctld(primary) at vm is UP\n", ""),
        ("show reservation", 0, "No reservations in the system\n", ""),
        (
            "create reservation ReservationName=r1 StartTime=now Duration=60 Nodes=gpu[1-2] Users=root Flags=MAINT,IGNORE_JOBS",
            0,
            "Reservation created: r1\n",
            "",
        ),
        (
            "create reservationname=r1 starttime=now duration=60 nodes=gpu1 users=root flags=maint",
            1,
            "",
            "Error creating the reservation: Duplicate reservation name\n",
        ),
        (
            "create reservation=r2 starttime=2020-01-01T00:00:00 duration=60 nodes=gpu3 users=root",
            1,
            "",
            "Error creating the reservation: Invalid time specified\n",
        ),
        (
            "create reservation=r2 starttime=now duration=60 nodes=gpu9 users=root",
            1,
            "",
            "Error creating the reservation: Invalid node name specified\n",
        ),
        (
            "create reservation=r3 starttime=now duration=60 nodes=gpu3 users=root",
            0,
            "Reservation created: r3\n",
            "",
        ),
        (
            "create reservation=r2 starttime=now duration=60 nodes=gpu3 users=root",
            1,
            "",
            "Error creating the reservation: Requested reservation overlaps with another reservation\n",
        ),
        (
            "update reservationname=r1 duration=120 nodes-=gpu2 flags-=IGNORE_JOBS",
            0,
            "Reservation updated.\n",
            "",
        ),
        (
            "update reservationname=r1 duration=+5",
            1,
            "",
            "scontrol: error: Invalid duration duration=+5.  No reservation update.\n",
        ),
        (
            "update reservationname=nosuch duration=5",
            1,
            "",
            "slurm_update error: Requested reservation is invalid\n",
        ),
        ("update reservationname=r1 duration+=5", 0, "Reservation updated.\n", ""),
        (
            "update reservationname=r1 starttime=now+600",
            1,
            "",
            "slurm_update error: Reservation already started\n",
        ),
        (
            "create reservation=r4 starttime=now duration=60 nodes=gpu3",
            1,
            "",
            "scontrol: error: Either Users/Groups and/or Accounts must be specified.  No reservation created.\n",
        ),
        ("show reservation nosuch", 1, "Reservation nosuch not found\n", ""),
        (
            "delete reservation nosuch",
            1,
            "",
            "delete_reservation reservation: Requested reservation is invalid\n",
        ),
        (
            "update nodename=gpu1 state=DRAIN",
            1,
            "",
            "You must specify a reason when DOWNING or DRAINING a node. Request denied\n",
        ),
        ("update nodename=gpu1 state=DRAIN |reason=gpu-bridge:h0001 e1 test", 0, "", ""),
        ("update nodename=gpu9 state=UNDRAIN", 1, "", "slurm_update error: Invalid node name specified\n"),
        ("update nodename=nobody Comment=x", 1, "", "slurm_update error: Invalid node name specified\n"),
        ("update nodename=gpu2 state=RESUME", 1, "", "slurm_update error: Invalid node state specified\n"),
        ("show node gpu9", 1, "Node gpu9 not found\n", ""),
        ("delete reservationname=r1", 0, "", ""),
        ("requeue 77", 1, "", "Invalid job id specified for job 77\n"),
    ] {
        let wanted = Output { exit, stdout: stdout.to_owned(), stderr: stderr.to_owned() };
        assert_eq!(run(&mut c, command), wanted, "{command}");
    }
}

#[test]
fn busy_nodes_need_ignore_jobs() {
    let mut c = cluster();
    c.submit(JobSpec::new("alice", 1, 4, SignedDuration::from_mins(10)).on(&["gpu1"])).unwrap();
    let create = "create reservation=r starttime=now duration=unlimited nodes=gpu1 users=root flags=maint";
    assert_eq!(run(&mut c, create).stderr, "Error creating the reservation: Requested nodes are busy\n");
    assert_eq!(run(&mut c, &format!("{create},ignore_jobs")).exit, 0);
    let shown = run(&mut c, "-o show res r").stdout;
    assert!(shown.contains("Duration=365-00:00:00") && shown.ends_with("MaxStartDelay=(null)\n"), "{shown}");
    assert_eq!(shown.lines().count(), 1);
}

#[test]
fn a_reservation_is_printed_as_by_24_11() {
    let mut c = cluster();
    run(
        &mut c,
        "create reservation=maint1 starttime=2026-11-30T05:26:30 duration=60 nodes=gpu2 users=root,alice flags=maint,ignore_jobs",
    );
    // As captured from the real one.
    let real =
        "ReservationName=maint1 StartTime=2026-11-30T05:26:30 EndTime=2026-11-30T06:26:30 Duration=01:00:00
   Nodes=gpu2 NodeCnt=1 CoreCnt=16 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES
   TRES=cpu=16
   Users=root,alice Groups=(null) Accounts=(null) Licenses=(null) State=INACTIVE BurstBuffer=(null)
   MaxStartDelay=(null)\n\n";
    assert_eq!(run(&mut c, "show reservation maint1").stdout, real);
    let json: Value = serde_json::from_str(&run(&mut c, "show reservation maint1 --json").stdout).unwrap();
    assert_eq!(json["reservations"][0]["users"], "root,alice");
    assert_eq!(json["reservations"][0]["flags"], json!(["MAINT", "IGNORE_JOBS", "SPEC_NODES"]));
}

#[test]
fn nodes_and_jobs_are_printed() {
    let mut c = cluster();
    c.submit(JobSpec::new("alice", 1, 2, SignedDuration::from_mins(10)).on(&["gpu1"])).unwrap();
    run(&mut c, "update nodename=gpu[1-2] state=drain |reason=some words");
    let node = run(&mut c, "-d show node gpu1").stdout;
    for part in [
        "State=MIXED+DRAIN ",
        "Gres=gpu:a100:4(S:0-1)\n",
        "GresUsed=gpu:a100:2(IDX:0-1)\n",
        "Reason=some words [root@2026-11-30T03:40:00]",
        "AllocTRES=cpu=2,mem=1G,gres/gpu=2,gres/gpu:a100=2",
    ] {
        assert!(node.contains(part), "{part} in {node}");
    }
    assert_eq!(run(&mut c, "show nodes -o").stdout.lines().count(), 4);
    let job = run(&mut c, "show job 1").stdout;
    assert!(job.contains("JobState=RUNNING") && job.contains("NodeList=gpu1"), "{job}");
    let json: Value = serde_json::from_str(&run(&mut c, "show node gpu2 --json").stdout).unwrap();
    assert_eq!(json["nodes"][0]["state"], json!(["IDLE", "DRAIN"]));
    assert_eq!(run(&mut c, "suspend 1").exit, 0);
    assert_eq!(c.jobs().next().unwrap().state.as_str(), "SUSPENDED");
}

#[test]
fn rights_and_a_dead_controller() {
    let mut c = cluster();
    let argv: Vec<String> =
        ["update", "nodename=gpu1", "state=drain", "reason=x"].map(str::to_owned).to_vec();
    assert_eq!(scontrol::run_as(&mut c, "alice", &argv).stderr, "slurm_update error: Invalid user id\n");
    // Also of a node that is not there.
    let argv: Vec<String> = ["update", "nodename=nobody", "comment=x"].map(str::to_owned).to_vec();
    assert_eq!(scontrol::run_as(&mut c, "alice", &argv).stderr, "slurm_update error: Invalid user id\n");
    c.stop_controller();
    let away = "Unable to contact slurm controller (connect failure)\n";
    for command in
        ["show node", "show reservation --json", "update nodename=gpu1 state=undrain", "delete reservation=x"]
    {
        let output = run(&mut c, command);
        assert!(output.exit == 1 && output.stderr.ends_with(away), "{command}: {output:?}");
    }
    assert_eq!(run(&mut c, "ping").exit, 1);
}
