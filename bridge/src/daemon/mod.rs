//! The daemon: an [`engine::Engine`] that ticks, and a cheap [`Handle`] to it for the API. The loop decides when to
//! tick, not what a tick does.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

mod alarms;
pub mod clock;
pub mod command;
pub mod decider;
mod effects;
pub mod engine;
pub mod journal;
mod publish;
pub mod published;
mod requests;

use crate::ledger::Disk;
use command::{Command, Refusal, Reply};
use engine::Engine;
use published::Published;

/// Requests that may wait for the engine.
const REQUESTS_WAITING: usize = 64;
/// A tick that made progress is followed by the next after this much, instead of a whole period.
const AFTER_PROGRESS: Duration = Duration::from_millis(200);

struct Request {
    user: String,
    command: Command,
    reply: oneshot::Sender<Result<Reply, Refusal>>,
}

/// A way to the running daemon. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    requests: mpsc::Sender<Request>,
    published: watch::Receiver<Arc<Published>>,
}

impl Handle {
    /// What the daemon showed after its last tick.
    pub fn published(&self) -> Arc<Published> {
        Arc::clone(&self.published.borrow())
    }

    /// Waits for the next tick's word; false when the daemon has stopped.
    pub async fn changed(&mut self) -> bool {
        self.published.changed().await.is_ok()
    }

    /// Asks for something in the name of `user`. Bounded: a daemon that is too busy says so.
    pub async fn request(&self, user: &str, command: Command) -> Result<Reply, Refusal> {
        let (reply, answer) = oneshot::channel();
        let request = Request { user: user.to_owned(), command, reply };
        let away = |why: &str| Refusal::Away { why: why.to_owned() };
        self.requests
            .try_send(request)
            .map_err(|_| away("it is stopping, or has too many requests waiting"))?;
        answer.await.map_err(|_| away("it stopped before it answered"))?
    }
}

/// Stops the loop of [`start`].
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// One that has not been used.
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Asks the loop to end after the effect under way.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it was asked.
    pub async fn stopped(&self) {
        let mut receiver = self.0.subscribe();
        // An error means the sender is gone, and `self` holds it.
        let _ = receiver.wait_for(|stopped| *stopped).await;
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes the handle and the loop. The first tick has been made when the loop's `ready` fires.
pub fn start<D: Disk + Send + Sync + 'static>(
    engine: Engine<D>,
    period: Duration,
    stop: Stop,
    ready: oneshot::Sender<()>,
) -> (Handle, impl Future<Output = Engine<D>> + Send) {
    let (requests, inbox) = mpsc::channel(REQUESTS_WAITING);
    let (words, published) = watch::channel(Arc::new(engine.published()));
    (Handle { requests, published }, run(engine, period, stop, ready, inbox, words))
}

async fn run<D: Disk + Send + Sync + 'static>(
    mut engine: Engine<D>,
    period: Duration,
    stop: Stop,
    ready: oneshot::Sender<()>,
    mut inbox: mpsc::Receiver<Request>,
    publisher: watch::Sender<Arc<Published>>,
) -> Engine<D> {
    let mut ready = Some(ready);
    loop {
        let ticked = engine.tick().await;
        publisher.send_replace(Arc::new(engine.published()));
        if let Some(ready) = ready.take() {
            // Nobody need be waiting.
            let _ = ready.send(());
        }
        let pause = tokio::time::sleep(if ticked.progress { AFTER_PROGRESS.min(period) } else { period });
        tokio::pin!(pause);
        loop {
            tokio::select! {
                biased;
                () = stop.stopped() => {
                    if let Err(error) = engine.stop() {
                        tracing::error!(%error, "the stop could not be recorded; the next start goes on all the same");
                    }
                    return engine;
                }
                Some(request) = inbox.recv() => {
                    let answer = engine.request(&request.user, request.command).await;
                    let went = answer.is_ok();
                    // Who asked may have gone.
                    let _ = request.reply.send(answer);
                    if went { break }
                }
                () = &mut pause => break,
            }
        }
    }
}
