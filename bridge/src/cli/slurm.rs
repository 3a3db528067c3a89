//! `gpu-bridge slurm`: what the Slurm port sees, live or in a saved answer. No daemon is asked and nothing is written.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use gpu_bridge_core::facts::slurm::{
    BaseState, Job, JobState, Node, NodeFlag, Partition, Reservation, Slurm as Facts,
};
use gpu_bridge_core::ids::{JobId, SlurmNodeName};

use super::show::{reached, table};
use super::told::complain;
use super::{Output, print};
use crate::slurm::decode::{Decoded, Kind, NodeSaid, decode};
use crate::slurm::{self, Detail, Gres, JobRecord, Slurm as _};
use crate::{assemble, config};

/// The most that is read of a saved answer, in bytes.
const FILE_MAX: u64 = 1024 * 1024 * 1024;

#[derive(Debug, Subcommand)]
pub(super) enum SlurmCmd {
    /// Look at Slurm as the daemon does, and print the facts. Writes nothing.
    Facts {
        #[command(flatten)]
        reach: Reach,
    },
    /// Print the facts in an answer of slurmrestd that was saved to a file, or the error it is.
    Decode {
        /// The REST version that was asked, such as v0.0.42.
        #[arg(long)]
        api: String,
        /// What was asked for.
        #[arg(long, value_enum)]
        kind: Kind,
        /// The answer; HTTP headers may stand in front. `-` reads standard input.
        file: PathBuf,
    },
}

/// Where Slurm is: as configured, or by these options alone.
#[derive(Debug, Args)]
pub(super) struct Reach {
    /// The configuration.
    #[arg(long, default_value = "/etc/gpu-bridge/gpu-bridge.toml", conflicts_with_all = ["url", "cli"])]
    config: PathBuf,
    /// Through scontrol and squeue alone, without slurmrestd and without a configuration.
    #[arg(long, conflicts_with = "url")]
    cli: bool,
    /// `http://HOST:PORT` or `unix:///PATH` of slurmrestd, instead of a configuration.
    #[arg(long)]
    url: Option<String>,
    /// The user that the token is for.
    #[arg(long, requires = "url", default_value = "root")]
    user: String,
    /// A file with the JWT.
    #[arg(long, requires = "url")]
    token_file: Option<PathBuf>,
    /// The REST version; without it, the newest that both sides know.
    #[arg(long, requires = "url")]
    api: Option<String>,
}

pub(super) async fn run(command: SlurmCmd, output: Output) -> anyhow::Result<ExitCode> {
    match command {
        SlurmCmd::Facts { reach } => {
            let options = match reach.options() {
                Ok(options) => options,
                Err(problems) => return Ok(complain(output, &problems)),
            };
            print(output, &look(options).await?, facts_text)?;
        }
        SlurmCmd::Decode { api, kind, file } => {
            let answer = read(&file)?;
            if !answer.starts_with(b"HTTP/") && output == Output::Text {
                eprintln!("no HTTP status in front: taken for 200");
            }
            print(output, &decode(&file.display().to_string(), &api, kind, &answer)?, decoded_text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Reach {
    fn options(self) -> Result<slurm::Options, Vec<config::Problem>> {
        if self.cli {
            return Ok(slurm::Options { mode: slurm::Mode::Cli, ..slurm::Options::default() });
        }
        let Some(url) = self.url else {
            let config = config::check_with(&self.config, config::Files::Ignored)?;
            return Ok(assemble::slurm_options(&config.slurm));
        };
        Ok(slurm::Options {
            url,
            user: self.user,
            token: self.token_file.map(slurm::TokenSource::File),
            api_version: self.api,
            ..slurm::Options::default()
        })
    }
}

async fn look(options: slurm::Options) -> Result<Facts, slurm::Error> {
    slurm::connect(options)?.look(&[]).await
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    use anyhow::Context as _;
    let mut bytes = Vec::new();
    let done = if file == Path::new("-") {
        std::io::stdin().take(FILE_MAX + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut bytes))
    };
    done.with_context(|| format!("{} cannot be read", file.display()))?;
    anyhow::ensure!(bytes.len() as u64 <= FILE_MAX, "{} is larger than {FILE_MAX} bytes", file.display());
    Ok(bytes)
}

fn facts_text(facts: &Facts) -> String {
    let unread = match facts.pending_unread {
        0 => String::new(),
        unread => format!("\n{unread} more pending jobs were not read"),
    };
    [
        reached(&facts.reached),
        nodes_text(facts.nodes.iter().map(|(name, node)| (name, node, None)))
            + &unreadable_text(facts.unreadable_nodes.iter()),
        partitions_text(facts.partitions.iter()),
        reservations_text(facts.reservations.values()),
        jobs_text(facts.jobs.values().map(|job| (job, String::new()))) + &unread,
    ]
    .join("\n\n")
}

fn decoded_text(decoded: &Decoded) -> String {
    match decoded {
        Decoded::Nodes(nodes) => {
            let read = nodes.iter().filter_map(|(name, said)| match said {
                NodeSaid::Read(record) => {
                    Some((name, &record.node, Some((&record.gres[..], &record.gres_used[..]))))
                }
                NodeSaid::Unreadable { .. } => None,
            });
            let unreadable = nodes.iter().filter_map(|(name, said)| match said {
                NodeSaid::Unreadable { unreadable } => Some((name, unreadable)),
                NodeSaid::Read(_) => None,
            });
            nodes_text(read) + &unreadable_text(unreadable)
        }
        Decoded::Jobs(jobs) => jobs_text(jobs.values().map(|record| (&record.job, part(record)))),
        Decoded::JobStates(states) => {
            let row = |(id, words): (&JobId, &Vec<String>)| vec![id.to_string(), words.join("+")];
            table(&["JOB", "STATE"], &states.iter().map(row).collect::<Vec<_>>())
        }
        Decoded::Reservations(reservations) => reservations_text(reservations.values()),
        Decoded::Partitions(partitions) => partitions_text(partitions.iter()),
        Decoded::Pings(pings) => {
            let rows: Vec<_> = pings
                .iter()
                .map(|ping| {
                    let primary =
                        ping.primary.map_or("-", |primary| if primary { "primary" } else { "backup" });
                    let answers = if ping.responding { "answers" } else { "does not answer" };
                    vec![ping.host.clone(), primary.to_owned(), answers.to_owned()]
                })
                .collect();
            table(&["SLURMCTLD", "ROLE", "STATE"], &rows)
        }
    }
}

type Texts<'a> = Option<(&'a [Gres], &'a [Gres])>;

fn nodes_text<'a>(nodes: impl Iterator<Item = (&'a SlurmNodeName, &'a Node, Texts<'a>)>) -> String {
    let rows: Vec<_> = nodes
        .map(|(name, node, texts)| {
            let used = node.gpus_used.map_or_else(|| "?".to_owned(), |used| used.to_string());
            let reason = node.reason.as_ref().map_or_else(String::new, |reason| {
                let at = reason.at.map_or_else(String::new, |at| format!(" at {at}"));
                format!("{} [{}{at}]", reason.text, reason.user)
            });
            let (gres, in_use) = texts.unwrap_or_default();
            vec![
                name.to_string(),
                state_text(&node.state, &node.flags),
                format!("{used}/{}", node.gpus),
                gres_text(gres),
                gres_text(in_use),
                list(&node.partitions),
                reason,
            ]
        })
        .collect();
    // Where there are no texts there are no columns for them.
    let (gres, in_use) = (3, 4);
    let headings = ["NODE", "STATE", "GPUS", "GRES", "IN USE", "PARTITIONS", "REASON"];
    if rows.iter().any(|row: &Vec<String>| !row[gres].is_empty() || !row[in_use].is_empty()) {
        return table(&headings, &rows);
    }
    let without = |row: &[String]| [&row[..gres], &row[in_use + 1..]].concat();
    let rows: Vec<_> = rows.iter().map(|row| without(row)).collect();
    table(&["NODE", "STATE", "GPUS", "PARTITIONS", "REASON"], &rows)
}

/// A line below the table for each node that cannot be in it.
fn unreadable_text<'a>(nodes: impl Iterator<Item = (&'a SlurmNodeName, &'a String)>) -> String {
    let lines: Vec<String> =
        nodes.map(|(name, found)| format!("\n{name} could not be read: {found}")).collect();
    lines.concat()
}

/// In Slurm's words where they are ours too.
fn state_text(state: &BaseState, flags: &BTreeSet<NodeFlag>) -> String {
    let flags = flags.iter().map(NodeFlag::word);
    std::iter::once(state.word()).chain(flags).collect::<Vec<_>>().join("+")
}

fn gres_text(gres: &[Gres]) -> String {
    let one = |gres: &Gres| {
        let count = gres.count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        let numbers = |set: &BTreeSet<u32>| set.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let detail = match &gres.detail {
            Detail::None => String::new(),
            Detail::Index(devices) if devices.is_empty() => String::new(),
            Detail::Sockets(sockets) => format!(" on sockets {}", numbers(sockets)),
            Detail::Index(devices) => format!(" (devices {})", numbers(devices)),
            Detail::Shares(shares) => {
                let share = |(used, of): &(Option<u32>, u32)| {
                    used.map_or_else(|| format!("-/{of}"), |used| format!("{used}/{of}"))
                };
                format!(" ({})", shares.iter().map(share).collect::<Vec<_>>().join(" "))
            }
            Detail::Other(text) => format!(" ({text})"),
        };
        let model = gres.model.as_deref().map_or_else(String::new, |model| format!(" {model}"));
        format!("{count} {}{model}{detail}", gres.kind)
    };
    gres.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What a job is a part of.
fn part(record: &JobRecord) -> String {
    let array = record.array.map(|array| match (array.task, array.waiting) {
        (Some(task), _) => format!("task {task} of array {}", array.job),
        (None, Some(waiting)) => format!("{waiting} waiting tasks of array {}", array.job),
        (None, None) => format!("waiting tasks of array {}", array.job),
    });
    let het = record.het.map(|het| format!("component {} of {}", het.offset, het.job));
    array.or(het).unwrap_or_default()
}

fn jobs_text<'a>(jobs: impl Iterator<Item = (&'a Job, String)>) -> String {
    let rows: Vec<_> = jobs
        .map(|(job, part)| {
            let state = match &job.state {
                JobState::Pending => "pending",
                JobState::Configuring => "configuring",
                JobState::Running => "running",
                JobState::Suspended => "suspended",
                JobState::Completing => "completing",
                JobState::Finished => "finished",
                JobState::Other(word) => word,
            };
            let nodes = if job.nodes.is_empty() { &job.required_nodes } else { &job.nodes };
            vec![
                job.id.to_string(),
                state.to_owned(),
                job.user.clone(),
                job.partition.clone(),
                format!("{}x{}", job.node_count, job.gpus_per_node),
                list(nodes),
                job.end_by.map_or_else(|| "-".to_owned(), |end| end.to_string()),
                job.pending_reason.clone().unwrap_or_default(),
                part,
            ]
        })
        .collect();
    let headings =
        ["JOB", "STATE", "USER", "PARTITION", "NODESxGPUS", "NODES", "ENDS BY", "WAITS FOR", "PART OF"];
    table(&headings, &rows)
}

fn reservations_text<'a>(reservations: impl Iterator<Item = &'a Reservation>) -> String {
    let row = |r: &Reservation| {
        vec![
            r.name.clone(),
            list(&r.nodes),
            r.start.to_string(),
            r.end.to_string(),
            list(&r.flags),
            list(&r.users),
            list(&r.accounts),
        ]
    };
    let headings = ["RESERVATION", "NODES", "START", "END", "FLAGS", "USERS", "ACCOUNTS"];
    table(&headings, &reservations.map(row).collect::<Vec<_>>())
}

fn partitions_text<'a>(partitions: impl Iterator<Item = (&'a String, &'a Partition)>) -> String {
    let row = |(name, partition): (&String, &Partition)| {
        vec![
            name.clone(),
            if partition.up { "up" } else { "not up" }.to_owned(),
            partition.max_time.map_or_else(|| "unlimited".to_owned(), |time| format!("{time:#}")),
            list(&partition.nodes),
        ]
    };
    table(&["PARTITION", "STATE", "LONGEST", "NODES"], &partitions.map(row).collect::<Vec<_>>())
}

fn list<'a, T: ToString + 'a>(items: impl IntoIterator<Item = &'a T>) -> String {
    items.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(api: &str, kind: Kind, answer: &str) -> String {
        decoded_text(&decode("x", api, kind, answer.as_bytes()).unwrap())
    }

    #[test]
    fn every_kind_has_a_table() {
        let node = r#"{"nodes":[{"name":"gpu1","state":"idle","state_flags":["DRAIN","ODD"],"gres":"gpu:a100:4(S:0-1)",
            "gres_used":"gpu:a100:1(IDX:2)","reason":"bad disk","reason_set_by_user":"root","reason_changed_at":60}]}"#;
        let job = r#"{"jobs":[{"job_id":10,"job_state":["PENDING"],"nodes":"","required_nodes":"gpu[1-2]",
            "user_name":"alice","partition":"main","node_count":{"set":true,"number":2},"tres_per_node":"gres/gpu:4",
            "state_reason":"Resources","array_job_id":{"set":true,"number":10},"array_task_string":"1-100%5"}]}"#;
        let reservation = r#"{"reservations":[{"name":"r","node_list":"gpu1","flags":["MAINT"],"start_time":60,
            "end_time":120,"users":"root"}]}"#;
        let partition =
            r#"{"partitions":[{"name":"main","nodes":"gpu[1-2]","state":"UP","max_time_limit":-1}]}"#;
        let ping = r#"{"pings":[{"hostname":"head","responding":false}]}"#;
        for (api, kind, answer, expected) in [
            (
                "v0.0.38",
                Kind::Node,
                node,
                "NODE  STATE           GPUS  GRES                     IN USE                  PARTITIONS  REASON\n\
                 gpu1  IDLE+DRAIN+ODD  1/4   4 gpu a100 on sockets 0 1  1 gpu a100 (devices 2)              \
                 bad disk [root at 1970-01-01T00:01:00Z]",
            ),
            (
                "v0.0.42",
                Kind::Jobs,
                job,
                "JOB  STATE    USER   PARTITION  NODESxGPUS  NODES      ENDS BY  WAITS FOR  PART OF\n\
                 10   pending  alice  main       2x4         gpu1,gpu2  -        Resources  \
                 100 waiting tasks of array 10",
            ),
            (
                "v0.0.39",
                Kind::Reservations,
                reservation,
                "RESERVATION  NODES  START                 END                   FLAGS  USERS  ACCOUNTS\n\
                 r            gpu1   1970-01-01T00:01:00Z  1970-01-01T00:02:00Z  MAINT  root",
            ),
            (
                "v0.0.38",
                Kind::Partitions,
                partition,
                "PARTITION  STATE  LONGEST    NODES\nmain       up     unlimited  gpu1,gpu2",
            ),
            (
                "v0.0.42",
                Kind::Nodes,
                r#"{"nodes":[{"name":"gpu1","state":[]}]}"#,
                "NODE  STATE  GPUS  PARTITIONS  REASON\ngpu1 could not be read: state Many([]), flags None",
            ),
            ("v0.0.45", Kind::Ping, ping, "SLURMCTLD  ROLE  STATE\nhead       -     does not answer"),
            (
                "v0.0.42",
                Kind::JobStates,
                r#"{"jobs":[{"job_id":"17_0","state":["CANCELLED","COMPLETING"]}]}"#,
                "JOB  STATE\n17   CANCELLED+COMPLETING",
            ),
        ] {
            // Columns are as wide as they need; here only their order counts.
            let squeeze = |text: &str| {
                text.lines()
                    .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                    .collect::<Vec<_>>()
            };
            assert_eq!(squeeze(&text(api, kind, answer)), squeeze(expected), "{kind:?}");
        }
    }
}
