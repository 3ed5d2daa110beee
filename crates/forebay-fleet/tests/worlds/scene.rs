//! A world played by hand: what the named cases are written with.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use forebay_fleet::{Ledger, Link};

use crate::director::World;
use crate::plan::Plan;
use crate::process::{BACKEND, Process};

pub struct Scene(Arc<World>);

impl Deref for Scene {
    type Target = Arc<World>;

    fn deref(&self) -> &Arc<World> {
        &self.0
    }
}

impl Scene {
    pub async fn new(plan: Plan) -> Self {
        Self(World::new(plan).await)
    }

    /// Lets time pass and judges all the way.
    pub async fn run(&self, seconds: f64) {
        self.watch(seconds, |_| {}).await;
    }

    /// As [`run`](Self::run), with a look at the end of each step.
    pub async fn watch(&self, seconds: f64, mut look: impl FnMut(&Self)) {
        let mut left = Duration::from_secs_f64(seconds);
        while !left.is_zero() {
            let step = left.min(Duration::from_millis(100));
            tokio::time::sleep(step).await;
            left -= step;
            self.look().unwrap_or_else(|text| panic!("{text}"));
            look(self);
        }
    }

    pub fn process(&self, index: usize) -> Arc<Process> {
        self.processes.lock()[index].clone()
    }

    /// Connections that the backend has, in all and of each process.
    pub fn open(&self) -> usize {
        self.backend.open()
    }

    pub fn open_by(&self, index: usize) -> usize {
        self.backend.open_by(index)
    }

    pub fn ledger(&self) -> Ledger {
        self.keeper.ledger(BACKEND).expect("books")
    }

    pub fn link(&self, index: usize) -> Link {
        self.process(index).state().expect("a member").link
    }

    pub fn reaped(&self, index: usize) -> u64 {
        self.process(index).state().expect("a member").reaped
    }

    /// Seconds since the world began.
    pub fn time(&self) -> f64 {
        self.book.elapsed().as_secs_f64()
    }

    /// When a process's last answered report was sent.
    pub fn renewed(&self, index: usize) -> f64 {
        let heard = self.process(index).net.line.lock().heard;
        let (at, _) = heard.answered_sent.expect("answered");
        self.time() - (forebay::Instant::now() - at).as_secs_f64()
    }

    /// Cuts a process off from the keeper, or lets it through again.
    pub fn cut(&self, index: usize, up: bool, down: bool) {
        let process = self.process(index);
        let mut line = process.net.line.lock();
        (line.weather.cut_up, line.weather.cut_down) = (up, down);
    }

    /// Nobody reaches the keeper any more, or all do.
    pub fn outage(&self, away: bool) {
        for process in self.processes.lock().iter() {
            process.net.line.lock().outage = away;
        }
    }
}
