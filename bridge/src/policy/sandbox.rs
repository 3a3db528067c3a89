//! Runs one exported function of a policy once, in a fresh store, within limits, and says what it used and how it ended.
//! Does not know what the functions mean.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wasmtime::component::{
    Component, ComponentExportIndex, ComponentNamedList, InstancePre, Lift, Linker, Lower, WasmStr,
};
use wasmtime::{ResourceLimiter, Store, StoreContextMut, Trap, WasmBacktrace};

use super::engine::{self, Shared};
use super::error::Error;
use super::load::damaged;

/// What a policy may use. The defaults are those of the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the file in bytes.
    pub component_bytes: usize,
    /// Linear memory in bytes; above 64 MiB it is 64 MiB.
    pub memory_bytes: usize,
    /// Fuel (about one per instruction) for any call.
    pub fuel: u64,
    /// Fuel on top for each node in the snapshot.
    pub fuel_per_node: u64,
    /// Wall-clock time of one call; looked at every 10 ms.
    pub deadline: Duration,
    /// Bytes that a policy may hand over in one call.
    pub output_bytes: usize,
    /// Bytes on top for each node in the snapshot: a proposal may name nodes.
    pub output_bytes_per_node: usize,
    /// Log lines of one call.
    pub log_lines: usize,
    /// Bytes of one log line.
    pub log_line_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            component_bytes: 4 << 20,
            memory_bytes: 64 << 20,
            fuel: 100_000_000,
            fuel_per_node: 100_000,
            deadline: Duration::from_millis(500),
            output_bytes: 1 << 20,
            output_bytes_per_node: 256,
            log_lines: 64,
            log_line_bytes: 1024,
        }
    }
}

/// What a call used, and what the policy said meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Fuel used, about one per instruction; the same on every machine.
    pub fuel_used: u64,
    /// Fuel that it could have used.
    pub fuel_limit: u64,
    /// Largest linear memory, in bytes.
    pub memory_bytes: usize,
    /// Memory that it could have had, in bytes.
    pub memory_limit: usize,
    /// Lines logged, cut to their limits.
    pub log: Vec<LogLine>,
    /// Lines beyond the limit, not kept.
    pub log_dropped: u64,
}

/// One line that a policy logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// 0 panic, 1 error, 2 warning, 3 information, 4 debug.
    pub level: u8,
    /// The line, without control characters.
    pub message: String,
}

/// Level of the last words before a trap.
const LEVEL_PANIC: u8 = 0;

/// Frames of a panic that are shown.
const FRAMES: usize = 8;

/// What one instance has and may have.
pub(super) struct State {
    limits: Limits,
    usage: Usage,
    memory_denied: Option<usize>,
    last_words: Option<String>,
}

impl ResourceLimiter for State {
    fn memory_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let granted = desired <= self.usage.memory_limit;
        if granted {
            self.usage.memory_bytes = self.usage.memory_bytes.max(desired);
        } else {
            self.memory_denied = Some(desired);
        }
        Ok(granted)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= 100_000)
    }

    fn instances(&self) -> usize {
        64
    }

    fn tables(&self) -> usize {
        64
    }

    /// One, so that the limit on a memory is a limit on all of it.
    fn memories(&self) -> usize {
        1
    }
}

/// The only import.
fn log(mut store: StoreContextMut<'_, State>, (level, message): (u8, WasmStr)) -> wasmtime::Result<()> {
    let State { limits, usage, .. } = store.data();
    // The last words are always heard.
    let full = usage.log.len() >= limits.log_lines;
    if full && level != LEVEL_PANIC {
        store.data_mut().usage.log_dropped += 1;
        return Ok(());
    }
    let message = one_line(&message.to_str(&store)?, limits.log_line_bytes);
    let state = store.data_mut();
    if level == LEVEL_PANIC {
        state.last_words = Some(message.clone());
    }
    if full {
        state.usage.log_dropped += 1;
    } else {
        state.usage.log.push(LogLine { level, message });
    }
    Ok(())
}

/// At most so many bytes of a text, as one line.
pub(super) fn one_line(text: &str, bytes: usize) -> String {
    let end = text.floor_char_boundary(bytes);
    let kept = text.get(..end).unwrap_or_default();
    kept.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A compiled policy, ready to be instantiated.
pub(super) struct Sandbox {
    shared: &'static Shared,
    pre: InstancePre<State>,
    limits: Limits,
}

impl Sandbox {
    /// Compiles a component whose imports were looked at.
    pub(super) fn compile(bytes: &[u8], limits: Limits) -> Result<(Self, Component), Error> {
        let shared = engine::shared()?;
        let mismatch = |error: &wasmtime::Error| Error::AbiMismatch { reason: format!("{error:#}") };
        let component = Component::from_binary(&shared.engine, bytes)
            .map_err(|error| Error::NotWasm { found: damaged(&format!("{error:#}")) })?;
        let mut linker = Linker::new(&shared.engine);
        linker.root().func_wrap("log", log).map_err(|error| Error::Host { reason: format!("{error:#}") })?;
        let pre = linker.instantiate_pre(&component).map_err(|error| mismatch(&error))?;
        let memory_bytes = limits.memory_bytes.min(usize::try_from(engine::MEMORY_RESERVATION).unwrap_or(0));
        Ok((Self { shared, pre, limits: Limits { memory_bytes, ..limits } }, component))
    }

    /// Compares an exported function's types with ours, without calling it.
    pub(super) fn check_types<P, R>(&self, export: &ComponentExportIndex) -> Result<(), Error>
    where
        P: ComponentNamedList + Lower,
        (R,): ComponentNamedList + Lift,
    {
        let (result, _) = self.enter(0, |store| {
            let instance = self.pre.instantiate(&mut *store).map_err(Ended::Running)?;
            instance.get_typed_func::<P, (R,)>(&mut *store, export).map(drop).map_err(Ended::Typing)
        });
        result
    }

    /// Calls an exported function once, in an instance of its own. `nodes` scales the limits.
    pub(super) fn call<P, R>(
        &self,
        export: &ComponentExportIndex,
        nodes: usize,
        params: P,
    ) -> (Result<R, Error>, Usage)
    where
        P: ComponentNamedList + Lower,
        (R,): ComponentNamedList + Lift,
    {
        self.enter(nodes, |store| {
            let instance = self.pre.instantiate(&mut *store).map_err(Ended::Running)?;
            let function = instance.get_typed_func::<P, (R,)>(&mut *store, export).map_err(Ended::Typing)?;
            let (result,) = function.call(&mut *store, params).map_err(Ended::Running)?;
            Ok(result)
        })
    }

    /// Does something in a fresh store, within the limits.
    fn enter<R>(
        &self,
        nodes: usize,
        work: impl FnOnce(&mut Store<State>) -> Result<R, Ended>,
    ) -> (Result<R, Error>, Usage) {
        let limits = &self.limits;
        let scale = u64::try_from(nodes).unwrap_or(u64::MAX);
        let fuel_limit = limits.fuel.saturating_add(limits.fuel_per_node.saturating_mul(scale));
        let state = State {
            limits: *limits,
            usage: Usage { fuel_limit, memory_limit: limits.memory_bytes, ..Usage::default() },
            memory_denied: None,
            last_words: None,
        };
        let mut store = Store::new(&self.shared.engine, state);
        store.limiter(|state| state);
        let output = limits.output_bytes_per_node.saturating_mul(nodes).saturating_add(limits.output_bytes);
        store.set_hostcall_fuel(output);
        // One more, because the first tick may come at once.
        let ticks = limits.deadline.as_millis().div_ceil(engine::TICK.as_millis()) + 1;
        store.set_epoch_deadline(u64::try_from(ticks).unwrap_or(u64::MAX >> 1));
        let result = match store.set_fuel(fuel_limit) {
            Ok(()) => {
                let _ticking = self.shared.ticking();
                work(&mut store).map_err(|ended| ended.classify(store.data(), output))
            }
            Err(error) => Err(Error::Host { reason: format!("{error:#}") }),
        };
        // Fuel is on in the one configuration there is; a store without it has failed above.
        let fuel_used = fuel_limit.saturating_sub(store.get_fuel().unwrap_or(fuel_limit));
        let usage = Usage { fuel_used, ..store.into_data().usage };
        (result, usage)
    }
}

/// Where a call ended before its result.
enum Ended {
    /// The function's types are not ours.
    Typing(wasmtime::Error),
    /// It was running.
    Running(wasmtime::Error),
}

impl Ended {
    fn classify(self, state: &State, output: usize) -> Error {
        let error = match self {
            Self::Typing(error) => {
                return Error::AbiMismatch { reason: format!("its types differ: {error:#}") };
            }
            Self::Running(error) => error,
        };
        let trap = error.downcast_ref::<Trap>();
        if trap == Some(&Trap::OutOfFuel) {
            return Error::OutOfFuel { fuel: state.usage.fuel_limit };
        }
        if trap == Some(&Trap::Interrupt) {
            return Error::Deadline { milliseconds: state.limits.deadline.as_millis() };
        }
        // Whatever a policy did after memory was denied to it (Rust's allocator traps), this is why.
        if let Some(wanted) = state.memory_denied {
            return Error::MemoryDenied { wanted, limit: state.usage.memory_limit };
        }
        // Wasmtime has a type for this, but keeps it private.
        if error.chain().any(|cause| cause.to_string().contains("fuel allocated for hostcalls")) {
            let what = format!("more than {output} bytes in one call");
            return Error::OutputTooBig { what };
        }
        let message = state.last_words.clone().unwrap_or_else(|| match trap {
            Some(trap) => trap.to_string(),
            None => error.root_cause().to_string(),
        });
        let frames = error.downcast_ref::<WasmBacktrace>().map(own_frames).unwrap_or_default();
        Error::Panic { message, frames }
    }
}

/// The frames that the policy's author wrote: not the standard library's, not the SDK's.
fn own_frames(backtrace: &WasmBacktrace) -> Vec<String> {
    let symbols = backtrace.frames().iter().flat_map(wasmtime::FrameInfo::symbols);
    let own = symbols.filter_map(|symbol| {
        let file = symbol.file()?;
        let foreign =
            ["/rustc/", "library/std", "library/core", "library/alloc", "policy-sdk/src", "/registry/"];
        if foreign.iter().any(|part| file.contains(part)) {
            return None;
        }
        let name = symbol.name().unwrap_or("?");
        Some(one_line(&format!("{name}, {file}:{}", symbol.line().unwrap_or(0)), 512))
    });
    own.take(FRAMES).collect()
}
