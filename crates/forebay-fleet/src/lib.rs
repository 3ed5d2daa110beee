//! Budgets for a fleet: how fast connections may be opened and how many may be
//! open, over all processes that share a backend.

mod account;
mod count;
mod deadman;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod env;
mod keeper;
mod ledger;
mod member;
mod message;
mod model;
mod pace;
mod rate;
#[cfg(feature = "redis")]
mod redis;
mod settings;

#[cfg(feature = "redis")]
pub use self::redis::{RedisKeeper, RedisSettings, RedisSettingsError};
pub use account::Link;
pub use count::FleetCount;
#[cfg(feature = "dynamodb")]
pub use dynamodb::{DynamoKeeper, DynamoSettings, TableSetup};
pub use env::{EnvTable, FleetEnv};
pub use keeper::{Keeper, KeeperError, News};
pub use ledger::{Entry, Ledger, Moment, Stepped, Window};
pub use member::{Backend, BackendState, FleetError, Member};
pub use message::{
    Answer, BackendInfo, Booking, Limits, MemberId, MemberInfo, Profile, Report, Reserve, Reserved,
};
pub use model::{ModelKeeper, Snapshot};
pub use pace::FleetRate;
pub use rate::RateBook;
pub use settings::{BackendLimits, InvalidSettings, MemberSettings, OnLoss};
