//! How a guest waits: `wasi:io/poll` and the timers of `wasi:clocks/monotonic-clock`.
//!
//! These interfaces replace those of `wasmtime-wasi`. In a normal run they behave the same. In a replay, the next event
//! of the [`Timeline`] happens when nothing is ready that the guest waits for, so sleeps take no time, and the order of
//! events does not depend on chance.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use wasmtime::component::Resource;
use wasmtime_wasi::clocks::WasiClocksCtxView;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock;
use wasmtime_wasi::p2::bindings::io::poll;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};

use super::imports::GuestState;
use super::sources::{Sources, SteppedClock, Timeline, endless_wait, settle};

impl poll::Host for GuestState {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        let Some(timeline) = self.sources.timeline().cloned() else {
            return poll::Host::poll(&mut self.table, pollables).await;
        };
        loop {
            settle().await;
            let mut ready = Vec::new();
            for (index, pollable) in (0..).zip(&pollables) {
                if is_ready(self, pollable).await? {
                    ready.push(index);
                }
            }
            if !ready.is_empty() {
                return Ok(ready);
            }
            if !timeline.advance() {
                return Err(endless_wait().into());
            }
        }
    }
}

impl poll::HostPollable for GuestState {
    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        if self.sources.timeline().is_some() {
            settle().await;
        }
        poll::HostPollable::ready(&mut self.table, pollable).await
    }

    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        let Some(timeline) = self.sources.timeline().cloned() else {
            return poll::HostPollable::block(&mut self.table, pollable).await;
        };
        loop {
            settle().await;
            if is_ready(self, &pollable).await? {
                return Ok(());
            }
            if !timeline.advance() {
                return Err(endless_wait().into());
            }
        }
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        poll::HostPollable::drop(&mut self.table, pollable)
    }
}

async fn is_ready(state: &mut GuestState, pollable: &Resource<DynPollable>) -> wasmtime::Result<bool> {
    poll::HostPollable::ready(&mut state.table, Resource::new_borrow(pollable.rep())).await
}

impl GuestState {
    fn clocks(&mut self) -> WasiClocksCtxView<'_> {
        WasiClocksCtxView { ctx: self.wasi.clocks(), table: &mut self.table }
    }

    fn subscribe(&mut self, timer: Timer) -> wasmtime::Result<Resource<DynPollable>> {
        let timer = self.table.push(timer)?;
        subscribe(&mut self.table, timer)
    }
}

impl monotonic_clock::Host for GuestState {
    fn now(&mut self) -> wasmtime::Result<u64> {
        self.clocks().now()
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        self.clocks().resolution()
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        match self.sources.stepped() {
            None => self.clocks().subscribe_instant(when),
            Some((clock, _)) => {
                let delay = Duration::from_nanos(when).saturating_sub(clock.elapsed());
                let timer = Timer::new(&self.sources, clock, delay);
                self.subscribe(timer)
            }
        }
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        match self.sources.stepped() {
            None => self.clocks().subscribe_duration(duration),
            Some((clock, _)) => {
                let timer = Timer::new(&self.sources, clock, Duration::from_nanos(duration));
                self.subscribe(timer)
            }
        }
    }
}

/// A timer of a run that is recorded or replayed.
enum Timer {
    Past,
    Recorded { clock: SteppedClock, at: Duration },
    Replayed(oneshot::Receiver<()>),
}

impl Timer {
    fn new(sources: &Sources, clock: &SteppedClock, delay: Duration) -> Self {
        if delay.is_zero() {
            return Self::Past;
        }
        // The clock counts whole microseconds, and the guest must find that the time has passed.
        let micros = u64::try_from(delay.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        let delay = Duration::from_micros(micros);
        match sources.timeline().map(|timeline: &Timeline| timeline.after(delay)) {
            Some(event) => Self::Replayed(event),
            None => Self::Recorded { clock: clock.clone(), at: clock.elapsed().saturating_add(delay) },
        }
    }
}

#[async_trait::async_trait]
impl Pollable for Timer {
    async fn ready(&mut self) {
        match self {
            Self::Past => {}
            Self::Recorded { clock, at } => {
                match clock.instant_of(*at) {
                    Some(instant) => tokio::time::sleep_until(Instant::from_std(instant)).await,
                    None => std::future::pending().await,
                }
                clock.step_to(*at);
                *self = Self::Past;
            }
            Self::Replayed(event) => {
                // The timeline exists as long as the guest.
                let _happened = event.await;
                *self = Self::Past;
            }
        }
    }
}
