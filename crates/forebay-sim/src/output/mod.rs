//! What a run is shown as. Everything here is a plain function of a
//! [`Recording`](crate::Recording) or a [`Plan`](crate::Plan): no clock, no path, no locale, so the same run
//! gives the same bytes. Nothing here writes files.

mod compare;
mod csv;
mod figures;
mod json;
mod page;
mod plot;
mod report;
mod scale;
mod sections;
mod series;
mod summary;
mod words;

pub use compare::{Comparison, compare};
pub use csv::csv;
pub use json::{json, plan_json};
pub use report::report;
pub use summary::{Style, failures, summary};
pub use words::span;
