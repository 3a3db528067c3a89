//! Jobs and pods that people submit, change and end.

use jiff::SignedDuration;
use kube_mock::{Id, PodSpec, Request, Resource, Workload};
use serde_json::json;
use slurm_mock::model::{JobId, JobSpec, JobState, NodeName};

use super::{ADMIN, SPACE};
use crate::sim::decider::BURST;
use crate::sim::run::{GPUS, POOL_LABEL};
use crate::sim::world::{PROTECTED_PRIORITY, Who, World, text, whatever};

/// Jobs that wait at most.
const QUEUE: usize = 6;

#[derive(Debug, Clone, Copy)]
pub(super) enum JobChange {
    Cancel,
    Requeue,
    SuspendOrResume,
    Shrink,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum PodChange {
    ChangeWorkload,
    LonePod,
    ChangeBudget,
    DeletePod,
}

impl World {
    pub(super) fn submit(&mut self) {
        let waiting = self.slurm.jobs().filter(|job| job.state == JobState::Pending).count();
        if waiting >= QUEUE {
            return;
        }
        let user = self.dice.pick(&["alice", "bob", "carol"]).copied().unwrap_or("alice");
        let nodes = if self.dice.permille(200) { 2 } else { 1 };
        let gpus = u32::try_from(self.dice.within(1..i64::from(GPUS) + 1)).unwrap_or(1);
        let run = self.dice.within(30..2400);
        let limit = if self.dice.permille(800) { run + self.dice.within(60..1200) } else { run - 10 };
        let mut spec = JobSpec::new(user, nodes, gpus, SignedDuration::from_secs(run))
            .limit(SignedDuration::from_mins((limit / 60).max(1)));
        spec.requeue = self.dice.permille(500);
        // Refused while slurmctld is away.
        let submitted = self.change(Who::Others, |world| world.slurm.submit(spec).ok());
        if let Some(id) = submitted {
            self.counts.work += 1;
            self.tell(format!(
                "{user} submits job {id}: {nodes} nodes, {gpus} GPUs, {run} s, limit {limit} s"
            ));
        }
    }

    pub(super) fn change_job(&mut self, change: JobChange, node: &str) {
        let jobs: Vec<(JobId, String, JobState)> = self
            .slurm
            .jobs()
            .filter(|job| !job.state.is_final())
            .map(|job| (job.id, job.spec.user.clone(), job.state))
            .collect();
        let Some((id, user, state)) = self.dice.pick(&jobs).cloned() else { return };
        self.others(&format!("{user}'s job {id} ({state:?}): {change:?}"), |world| {
            // What Slurm refuses has no consequences.
            let done = match change {
                JobChange::Cancel => world.slurm.cancel(id, &user),
                JobChange::Requeue => world.slurm.requeue(id, &user),
                JobChange::Shrink => world.slurm.shrink_job(id, &NodeName::from(node), &user),
                JobChange::SuspendOrResume if state == JobState::Suspended => {
                    world.slurm.resume_job(id, ADMIN)
                }
                JobChange::SuspendOrResume => world.slurm.suspend(id, ADMIN),
            };
            whatever(done);
        });
    }

    pub(super) fn change_pods(&mut self, change: PodChange, node: &str) {
        self.people.number += 1;
        let number = self.people.number;
        match change {
            PodChange::ChangeWorkload => {
                let replicas = usize::try_from(self.dice.within(0..5)).unwrap_or(0);
                let gpus = u64::try_from(self.dice.within(1..i64::from(GPUS) + 1)).unwrap_or(1);
                let app = self.dice.pick(&["chat", "search"]).copied().unwrap_or("chat");
                let mut pod = pod(app, gpus);
                if self.dice.permille(100) {
                    pod.annotations.insert("gpu-bridge.io/do-not-disrupt".into(), "true".into());
                }
                let stop = self.dice.within(1..40);
                pod.annotations.insert("kube-mock/stop-seconds".into(), stop.to_string());
                self.others(
                    &format!("workload {app}: {replicas} of {gpus} GPUs, ending in {stop} s"),
                    |world| {
                        world.kube.set_workload(Workload::new(replicas, pod));
                    },
                );
                self.counts.work += 1;
            }
            PodChange::LonePod => {
                let gpus = u64::try_from(self.dice.within(0..i64::from(GPUS) + 1)).unwrap_or(0);
                let run = self.dice.within(20..1200);
                let mut pod = pod(&format!("lone-{number}"), gpus);
                if gpus == 0 {
                    pod.node_selector.clear();
                }
                pod.annotations.insert("kube-mock/run-seconds".into(), run.to_string());
                self.others(&format!("pod lone-{number}: {gpus} GPUs for {run} s"), |world| {
                    world.kube.add_pod(&pod);
                    if world.dice.permille(300) {
                        let stop = world.dice.within(5..60).to_string();
                        world.tell(format!("pod lone-{number} takes {stop} s to end"));
                        let id = Id::pod(SPACE, &pod.name);
                        world.kube.edit(&id, |pod| {
                            pod["metadata"]["annotations"]["kube-mock/stop-seconds"] = json!(stop);
                        });
                    }
                    if world.dice.permille(70) {
                        world.tell(format!("pod lone-{number} has a priority above eviction"));
                        let priority = PROTECTED_PRIORITY;
                        let id = Id::pod(SPACE, &pod.name);
                        world.kube.edit(&id, |pod| pod["spec"]["priority"] = json!(priority));
                    }
                });
                self.counts.work += 1;
            }
            PodChange::ChangeBudget => {
                let app = self.dice.pick(&["chat", "search"]).copied().unwrap_or("chat");
                let allowed = self.dice.within(0..3);
                self.budget(app, allowed);
            }
            PodChange::DeletePod => {
                let pods: Vec<String> = self
                    .kube
                    .all(Resource::Pods)
                    .filter(|(_, pod)| text(pod, "/spec/nodeName") == node)
                    .map(|(id, _)| id.name.clone())
                    .collect();
                let Some(name) = self.dice.pick(&pods).cloned() else { return };
                let grace = if self.dice.permille(500) { "0" } else { "30" };
                self.others(&format!("a person deletes pod {name} with grace {grace}"), |world| {
                    world.kube.request(&Request {
                        method: "DELETE".into(),
                        path: format!("/api/v1/namespaces/{SPACE}/pods/{name}"),
                        query: vec![("gracePeriodSeconds".into(), grace.into())],
                        ..Request::default()
                    });
                });
            }
        }
    }

    pub(in crate::sim) fn budget(&mut self, app: &str, allowed: i64) {
        let id = Id::namespaced(Resource::PodDisruptionBudgets, SPACE, app);
        let spec = json!({"maxUnavailable": allowed, "selector": {"matchLabels": {"app": app}}});
        self.others(&format!("budget of {app}: {allowed} may go"), |world| {
            if !world.kube.edit(&id, |budget| budget["spec"] = spec.clone()) {
                world.kube.create(&id, json!({"spec": spec}));
            }
        });
    }
}

pub(super) fn pod(app: &str, gpus: u64) -> PodSpec {
    PodSpec {
        namespace: SPACE.into(),
        name: app.to_owned(),
        gpus,
        labels: [("app".to_owned(), app.to_owned())].into(),
        node_selector: [(POOL_LABEL.to_owned(), BURST.to_owned())].into(),
        ..PodSpec::default()
    }
}
