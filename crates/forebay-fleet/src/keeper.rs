//! The contract between a member and whoever keeps the books: Redis, DynamoDB,
//! or the model that simulations use.

use forebay::BoxFuture;
use tokio::sync::mpsc::UnboundedSender;

use crate::message::{Answer, BackendInfo, Limits, MemberId, Report, Reserve, Reserved};

/// Why a keeper did not answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// It could not be reached, or did not answer in time. Whether it did what
    /// it was asked is unknown.
    #[error("the {keeper} keeper is away: {reason}")]
    Away {
        /// Redis or DynamoDB.
        keeper: &'static str,
        /// What happened.
        reason: String,
    },
    /// It answered that it has too much to do; nothing was done.
    #[error("the {keeper} keeper is overloaded: {reason}")]
    Busy {
        /// Redis or DynamoDB.
        keeper: &'static str,
        /// What it said.
        reason: String,
    },
    /// It is not set up as needed, or does not let us in. Trying again does not help.
    #[error("the {keeper} keeper cannot be used: {reason}; {remedy}")]
    Unusable {
        /// Redis or DynamoDB.
        keeper: &'static str,
        /// What is wrong.
        reason: String,
        /// What to do.
        remedy: String,
    },
}

/// Something of a backend's books has changed for a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The backend.
    pub backend: String,
    /// The member that should report soon.
    pub member: MemberId,
}

/// Keeps the books of many backends. Every call may fail with its effect unknown;
/// the protocol is made for that.
pub trait Keeper: Send + Sync + 'static {
    /// What it is called in logs and errors.
    fn name(&self) -> &'static str;

    /// Checks that the keeper can be used: version, schema, permissions.
    fn check(&self) -> BoxFuture<'_, Result<(), KeeperError>>;

    /// Books a report.
    fn report<'a>(&'a self, report: &'a Report) -> BoxFuture<'a, Result<Answer, KeeperError>>;

    /// Reserves rate permits.
    fn reserve<'a>(&'a self, reserve: &'a Reserve) -> BoxFuture<'a, Result<Reserved, KeeperError>>;

    /// The backend refused a connect because of its rate: everybody slows down.
    fn refused<'a>(
        &'a self,
        backend: &'a str,
        limits: &'a Limits,
    ) -> BoxFuture<'a, Result<(), KeeperError>>;

    /// Passes on news for any member until it fails. A keeper that cannot
    /// announce waits for ever; its members look by themselves now and then.
    fn listen(&self, news: UnboundedSender<News>) -> BoxFuture<'_, KeeperError> {
        drop(news);
        Box::pin(std::future::pending())
    }

    /// Whether [`listen`](Self::listen) announces anything.
    fn announces(&self) -> bool {
        false
    }

    /// Makes books for a new backend, so that its first members need not wait;
    /// `false` if there are some already.
    fn setup<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<bool, KeeperError>>;

    /// A backend's books, for operators.
    fn inspect<'a>(&'a self, backend: &'a str) -> BoxFuture<'a, Result<BackendInfo, KeeperError>>;

    /// The backends that have books.
    fn backends(&self) -> BoxFuture<'_, Result<Vec<String>, KeeperError>>;

    /// Takes a member's leases back now, at an operator's word; `None` if there
    /// is no such member, else how many leases it had.
    fn reap<'a>(
        &'a self,
        backend: &'a str,
        member: &'a MemberId,
    ) -> BoxFuture<'a, Result<Option<u32>, KeeperError>>;
}
