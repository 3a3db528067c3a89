//! The end of the story: what really happened, counted.

use std::path::Path;

use gpu_bridge::ledger;

/// What the evening must have brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Verdict {
    /// Jobs stopped before their time.
    pub(super) jobs_killed: usize,
    /// Jobs that ended by themselves.
    pub(super) jobs_finished: usize,
    /// Times at which a node really ran work of both, or could have started it.
    pub(super) double_open: usize,
    /// Most inference pods that ran at once while the window was on.
    pub(super) pods_running: usize,
    /// Seconds after the window's start until all its nodes were delivered; `None` where they never were.
    pub(super) late_s: Option<i64>,
    /// Jobs that waited for the evening's end and then started.
    pub(super) waiting_started: usize,
    /// Nodes with Slurm at the end.
    pub(super) home: usize,
}

impl Verdict {
    /// Prints it with the ledger's own check; true where everything happened that should.
    pub(super) fn print(&self, state_dir: &Path, evictions_blocked: u32) -> anyhow::Result<bool> {
        let report = ledger::verify(&ledger::path_in(state_dir))?;
        let late = match self.late_s {
            Some(late) if late <= 0 => "in time".to_owned(),
            Some(late) => format!("{late} s late"),
            None => "never".to_owned(),
        };
        println!();
        println!("  jobs killed                    {}", self.jobs_killed);
        println!("  jobs ended by themselves       {}", self.jobs_finished);
        println!("  nodes ever open on both sides  {}", self.double_open);
        println!("  window's nodes delivered       {late}");
        println!("  inference pods at once         {}", self.pods_running);
        println!("  evictions put off by a budget  {evictions_blocked}");
        println!("  waiting jobs started after     {}", self.waiting_started);
        println!("  nodes home at the end          {} of 4", self.home);
        println!("  ledger                         {report}");
        let good = self.jobs_killed == 0
            && self.jobs_finished > 0
            && self.double_open == 0
            && self.pods_running >= 3
            && self.late_s.is_some_and(|late| late <= 60)
            && self.waiting_started > 0
            && self.home == 4;
        println!(
            "\n  {}",
            if good { "All of it happened as it should." } else { "NOT everything happened as it should." }
        );
        Ok(good)
    }
}
