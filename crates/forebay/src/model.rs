//! The pool without its driver, for model checking (`--cfg shuttle`): a test
//! stocks connections itself and plays the driver, on a scheduler that tries
//! many orders of everything. In no other build does this exist.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::budget::Lease;
use crate::builder::Builder;
use crate::connector::Connector;
use crate::error::BuildError;
use crate::hub::Hub;
use crate::keys::DEFAULT_KEY;
use crate::live::Verdict;
use crate::pool::Pool;
use crate::source::Step;

/// What the driver of a pool would do, in the hands of a test.
pub struct Hand<C: Connector> {
    hub: Arc<Hub<C>>,
}

impl<C: Connector> Clone for Hand<C> {
    fn clone(&self) -> Self {
        Self { hub: self.hub.clone() }
    }
}

impl<C: Connector> Hand<C> {
    /// A pool whose driver is the caller.
    ///
    /// # Errors
    /// As [`Builder::build`], but no runtime is needed.
    pub fn build(builder: Builder<C>) -> Result<(Self, Pool<C>), BuildError> {
        let hub = builder.hub()?;
        Ok((Self { hub: hub.clone() }, Pool::new(hub)))
    }

    /// Opens one connection for the default key, now.
    pub fn stock(&self) {
        self.hub.with(|state, now| {
            let count = state.sources[0].settings.count.clone();
            let taken = count
                .as_ref()
                .is_none_or(|count| count.take(now, crate::budget::Ask::new(1)).leases == 1);
            assert!(taken, "there is a lease for what is stocked");
            state.start_open(0, DEFAULT_KEY, Lease::taken(count.as_ref(), 0), now);
        });
        let ids = std::mem::take(&mut self.hub.state.lock().outbox.opens);
        for id in ids {
            // whether it is needed does not matter here
            self.hub.with(|state, now| state.step(id, Step::Connect, now));
            self.connect(id);
        }
    }

    /// One wake-up of the driver, with a backend that does everything at once.
    /// `false` once all is over.
    pub fn turn(&self) -> bool {
        let now = self.hub.clock.now();
        let mut state = self.hub.state.lock();
        state.tick(now);
        let opens = std::mem::take(&mut state.outbox.opens);
        let closes = std::mem::take(&mut state.outbox.closes);
        let resets = std::mem::take(&mut state.outbox.resets);
        let ended = state.closed && state.conns.is_empty();
        self.hub.unlock_loudly(state);
        opens.into_iter().for_each(|id| self.open(id));
        for live in closes {
            let id = live.id;
            drop(live);
            self.hub.with(|state, now| state.released(id, true, now));
        }
        for live in resets {
            self.hub.with(|state, now| state.put(live, Verdict::Clean, now));
        }
        !ended
    }

    /// The driver: a turn after each signal, until the pool is closed and empty.
    pub async fn drive(self) {
        while self.turn() {
            self.hub.signal.notified().await;
        }
    }

    /// Closes the pool.
    pub fn close(&self) {
        self.hub.close();
    }

    fn open(&self, id: u32) {
        if self.hub.with(|state, now| state.step(id, Step::Connect, now)) {
            self.connect(id);
        } else {
            self.hub.with(|state, now| state.open_ended(id, false, now));
        }
    }

    fn connect(&self, id: u32) {
        let key = C::Key::default();
        let mut connect = std::pin::pin!(self.hub.connectors[0].connect(&key));
        let answer = connect.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        match answer {
            Poll::Ready(Ok(opened)) => self.hub.with(|state, now| state.opened(id, opened, now)),
            _ => panic!("the connector of a model answers at once"),
        }
    }
}
