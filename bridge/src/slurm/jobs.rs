//! Which jobs to ask for by id, given what jobs/state shows, and what is remembered of them. GET jobs costs seconds and
//! gigabytes on a busy cluster; jobs/state costs milliseconds, and job/ID 2 ms each. Versions without jobs/state (up to
//! v0.0.40) have nothing but GET jobs, and nothing here is used with them. Knows no JSON and no HTTP.

use std::collections::BTreeMap;

use gpu_bridge_core::facts::slurm::{Job, JobState};
use gpu_bridge_core::ids::JobId;

use super::shape::JobMark;

/// Pending jobs of which the details are kept, the newest.
const PENDING_MAX: usize = 2_000;
/// Pending jobs asked for in one look, whether new or read long ago.
const PENDING_PER_LOOK: usize = 256;
/// Jobs with nodes that are asked for again in one look although their state is the same (time limits and sizes change).
const AGAIN_PER_LOOK: usize = 256;

/// What was read of one job.
#[derive(Debug, Clone)]
struct Detail {
    words: Vec<String>,
    /// `None`: too large to read (the head of a big array); asked again when its state changes.
    job: Option<Job>,
    /// The look in which it was read.
    look: u64,
}

/// What is remembered between looks.
#[derive(Debug, Default)]
pub(super) struct Details {
    known: BTreeMap<JobId, Detail>,
    look: u64,
}

/// What to ask for in this look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Must be read, or the look fails: jobs that have nodes, and watched ones.
    pub(super) must: Vec<JobId>,
    /// Waiting jobs.
    pub(super) may: Vec<JobId>,
}

impl Details {
    /// Begins a look: forgets jobs that are gone or finished, and tells what to ask for.
    pub(super) fn begin(&mut self, marks: &BTreeMap<JobId, JobMark>, watched: &[JobId]) -> Wanted {
        self.look += 1;
        self.known.retain(|id, detail| marks.get(id).is_some_and(|mark| mark.words == detail.words));
        let mut must: Vec<JobId> = watched.to_vec();
        let mut again = Vec::new();
        let mut pending = Vec::new();
        for (id, mark) in marks {
            match mark.state {
                JobState::Finished => {}
                JobState::Pending => pending.push(*id),
                JobState::Configuring
                | JobState::Running
                | JobState::Suspended
                | JobState::Completing
                | JobState::Other(_) => match self.known.get(id) {
                    Some(detail) => again.push((detail.look, *id)),
                    None => must.push(*id),
                },
            }
        }
        again.sort_unstable();
        must.extend(again.into_iter().take(AGAIN_PER_LOOK).map(|(_, id)| id));
        must.sort_unstable();
        must.dedup();

        // The newest first, and of those the unread first, then those read longest ago.
        let mut may: Vec<_> = pending
            .into_iter()
            .rev()
            .take(PENDING_MAX)
            .filter(|id| must.binary_search(id).is_err())
            .filter(|id| self.known.get(id).is_none_or(|detail| detail.job.is_some()))
            .map(|id| (self.known.get(&id).map_or(0, |detail| detail.look), std::cmp::Reverse(id)))
            .collect();
        may.sort_unstable();
        let may = may.into_iter().take(PENDING_PER_LOOK).map(|(_, id)| id.0).collect();
        Wanted { must, may }
    }

    /// Remembers what was read; `None` for a job too large to read.
    pub(super) fn put(&mut self, id: JobId, mark: &JobMark, job: Option<Job>) {
        self.known.insert(id, Detail { words: mark.words.clone(), job, look: self.look });
    }

    /// Every unfinished job that was read, in this look or before, and how many pending ones were not.
    pub(super) fn end(&self, marks: &BTreeMap<JobId, JobMark>) -> (BTreeMap<JobId, Job>, u32) {
        let mut jobs = BTreeMap::new();
        let mut unread = 0;
        for (id, mark) in marks {
            let job = self.known.get(id).and_then(|detail| detail.job.as_ref());
            match (job, &mark.state) {
                (Some(job), _) if job.state != JobState::Finished => {
                    jobs.insert(*id, job.clone());
                }
                (None, JobState::Pending) => unread += 1,
                // Gone between jobs/state and job/ID.
                (
                    Some(_) | None,
                    JobState::Pending
                    | JobState::Configuring
                    | JobState::Running
                    | JobState::Suspended
                    | JobState::Completing
                    | JobState::Finished
                    | JobState::Other(_),
                ) => {}
            }
        }
        (jobs, unread)
    }
}

#[cfg(test)]
mod tests {
    use gpu_bridge_core::facts::NodeSet;

    use super::*;
    use crate::slurm::shape::job_state;

    fn mark(words: &[&str]) -> JobMark {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        JobMark { state: job_state(&words), words }
    }

    fn job(id: JobId, state: JobState) -> Job {
        Job {
            id,
            state,
            user: String::new(),
            partition: String::new(),
            nodes: NodeSet::default(),
            required_nodes: NodeSet::default(),
            node_count: 1,
            gpus_per_node: 0,
            time_limit: None,
            start: None,
            end_by: None,
            requeue: false,
            pending_reason: None,
            submitted: None,
            gpu_type: None,
            tasks: Some(1),
            het_leader: None,
        }
    }

    /// Reads all that is wanted.
    fn read(details: &mut Details, marks: &BTreeMap<JobId, JobMark>, watched: &[JobId]) -> Wanted {
        let wanted = details.begin(marks, watched);
        for id in wanted.must.iter().chain(&wanted.may) {
            if let Some(mark) = marks.get(id) {
                details.put(*id, mark, Some(job(*id, mark.state.clone())));
            }
        }
        wanted
    }

    #[test]
    fn every_job_with_nodes_is_read_at_once_and_again_when_its_state_changes() {
        let mut details = Details::default();
        let mut marks: BTreeMap<_, _> = (1..=1000).map(|id| (JobId(id), mark(&["RUNNING"]))).collect();
        marks.insert(JobId(1001), mark(&["COMPLETED"]));
        assert_eq!(read(&mut details, &marks, &[]).must.len(), 1000);
        // Unchanged: a part of them, and another part the next time.
        let first = read(&mut details, &marks, &[]).must;
        let second = read(&mut details, &marks, &[]).must;
        assert_eq!((first.len(), second.len()), (AGAIN_PER_LOOK, AGAIN_PER_LOOK));
        assert!(first.iter().all(|id| !second.contains(id)));
        // Changed, and watched though finished.
        marks.insert(JobId(7), mark(&["CANCELLED", "COMPLETING"]));
        let wanted = details.begin(&marks, &[JobId(1001)]);
        assert!(wanted.must.contains(&JobId(7)) && wanted.must.contains(&JobId(1001)));
        // Until it was read again, nothing is said of it, and the look that must read it fails.
        assert!(!details.end(&marks).0.contains_key(&JobId(7)));
    }

    #[test]
    fn pending_jobs_are_read_newest_first_within_bounds_and_the_rest_is_counted() {
        let mut details = Details::default();
        let marks: BTreeMap<_, _> = (1..=2_500).map(|id| (JobId(id), mark(&["PENDING"]))).collect();
        let wanted = read(&mut details, &marks, &[]);
        assert_eq!(wanted.must, []);
        assert_eq!(wanted.may.len(), PENDING_PER_LOOK);
        assert_eq!(wanted.may.first(), Some(&JobId(2_500)));
        assert_eq!(details.end(&marks).1, 2_500 - 256);
        for _ in 0..20 {
            read(&mut details, &marks, &[]);
        }
        let (jobs, unread) = details.end(&marks);
        assert_eq!((jobs.len(), unread), (PENDING_MAX, 500));
        assert!(!jobs.contains_key(&JobId(500)) && jobs.contains_key(&JobId(501)));
    }

    #[test]
    fn an_array_too_large_to_read_is_counted_and_not_asked_for_again() {
        let mut details = Details::default();
        let marks = BTreeMap::from([(JobId(1), mark(&["PENDING"]))]);
        assert_eq!(details.begin(&marks, &[]).may, [JobId(1)]);
        details.put(JobId(1), &marks[&JobId(1)], None);
        assert_eq!(details.end(&marks).1, 1);
        assert_eq!(details.begin(&marks, &[]), Wanted::default());
        let marks = BTreeMap::from([(JobId(1), mark(&["PENDING", "REQUEUED"]))]);
        assert_eq!(details.begin(&marks, &[]).may, [JobId(1)]);
    }
}
