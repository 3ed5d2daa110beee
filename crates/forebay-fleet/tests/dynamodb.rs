//! The DynamoDB keeper against DynamoDB Local: the scenarios that every keeper must
//! pass (the modelled keeper passes them beside it), who lives and who is reaped,
//! many at once, and what goes wrong. FOREBAY_TEST_DYNAMODB is the server's address;
//! without it the tests that need it skip themselves. They run in real time, since
//! the server does; where time must pass, a keeper's own clock is put forward.

#![cfg(feature = "dynamodb")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

#[macro_use]
mod conformance;
#[path = "dynamodb/common.rs"]
mod common;
#[path = "dynamodb/faults.rs"]
mod faults;
#[path = "dynamodb/lives.rs"]
mod lives;
#[path = "dynamodb/members.rs"]
mod members;
#[path = "dynamodb/together.rs"]
mod together;

mod local {
    use std::sync::Arc;

    use forebay_fleet::Keeper;

    use crate::{common, conformance};

    async fn keeper(test: &str) -> Option<Arc<dyn Keeper>> {
        let place = common::Place::find(test).await?;
        Some(Arc::new(place.keeper()))
    }

    conformance!(keeper);
}

mod modelled {
    use std::sync::Arc;

    use forebay::Clock;
    use forebay_fleet::{Keeper, ModelKeeper};

    use crate::conformance;

    async fn keeper(_test: &str) -> Option<Arc<dyn Keeper>> {
        Some(Arc::new(ModelKeeper::new(Clock::tokio())))
    }

    conformance!(keeper);
}
