//! The simulator: real pools and the real fleet protocol under virtual time,
//! against modelled backends and a modelled coordinator.

mod census;
mod chance;
mod clocks;
mod events;
mod file;
mod instance;
mod judge;
mod link;
pub mod output;
mod plan;
mod record;
mod scenario;
mod site;
mod wire;
mod world;

pub use file::FileError;
pub use plan::{BackendPlan, Plan, plan};
pub use record::{Mark, Recording, Sample, Second, ServiceSample, Totals, Verdict};
pub use scenario::{
    Action, Arrivals, Assertions, BackendModel, ClockModel, Coordinator, Event, Refusal, Scenario,
    Service, Spread, Workload,
};
pub use world::run;
