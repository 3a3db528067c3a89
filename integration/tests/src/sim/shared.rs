//! The one world, held by both ports and the driver. Nobody else runs beside them: the lock is never waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::world::World;

/// A handle on the world.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(super) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
