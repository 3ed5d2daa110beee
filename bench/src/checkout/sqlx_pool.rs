//! sqlx 0.9's pool under test, on a database that does nothing. The pool asks
//! for a whole `Database`; everything of it that a pool never touches (rows,
//! columns, statements, values) is a type without values, so that its methods
//! cannot be called.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result as AnyResult;
use log::LevelFilter;
use sqlx_core::arguments::{Arguments, IntoArguments};
use sqlx_core::column::{Column, ColumnIndex};
use sqlx_core::connection::{ConnectOptions, Connection};
use sqlx_core::database::Database;
use sqlx_core::encode::Encode;
use sqlx_core::error::{BoxDynError, Error};
use sqlx_core::from_row::FromRow;
use sqlx_core::pool::{Pool, PoolConnection, PoolOptions};
use sqlx_core::query::Query;
use sqlx_core::query_as::QueryAs;
use sqlx_core::query_scalar::QueryScalar;
use sqlx_core::row::Row;
use sqlx_core::sql_str::SqlStr;
use sqlx_core::statement::Statement;
use sqlx_core::transaction::{Transaction, TransactionManager};
use sqlx_core::type_info::TypeInfo;
use sqlx_core::types::Type;
use sqlx_core::value::{Value, ValueRef};
use sqlx_core::{Either, Url};

use super::CONNECTIONS;
use super::subject::{NoopConn, Subject, fill};

/// sqlx 0.9. Default `PoolOptions` (`test_before_acquire(true)`, acquire timeout
/// 30 s, idle timeout 10 min, lifetime 30 min, fair) with `max_connections` 16;
/// `ping` is a no-op. A connection is given back by a spawned task; waiters
/// queue in a tokio semaphore, first come first served.
#[derive(Clone)]
pub(crate) struct Sqlx(Pool<Noop>);

impl Subject for Sqlx {
    const NAME: &'static str = "sqlx";
    const FAIR: bool = true;

    type Guard<'a> = PoolConnection<Noop>;

    async fn build() -> AnyResult<Self> {
        let pool = PoolOptions::new().max_connections(CONNECTIONS).connect_lazy_with(NoopOptions);
        let pool = Self(pool);
        fill(&pool).await?;
        Ok(pool)
    }

    async fn get(&self) -> AnyResult<Self::Guard<'_>> {
        Ok(self.0.acquire().await?)
    }
}

/// The database that does nothing.
#[derive(Debug)]
pub(crate) struct Noop;

/// Stands for whatever a pool never makes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Never {}

/// How to reach the database that does nothing.
#[derive(Debug, Clone)]
pub(crate) struct NoopOptions;

/// Arguments of a query that is never made.
#[derive(Default)]
pub(crate) struct NoArguments;

/// Transactions that are never begun.
pub(crate) struct NoTransactions;

/// What a query that is never made brings.
#[derive(Default)]
pub(crate) struct NoResult;

impl Database for Noop {
    type Connection = NoopConn;
    type TransactionManager = NoTransactions;
    type Row = Never;
    type QueryResult = NoResult;
    type Column = Never;
    type TypeInfo = Never;
    type Value = Never;
    type ValueRef<'r> = Never;
    type Arguments = NoArguments;
    type ArgumentBuffer = ();
    type Statement = Never;
    const NAME: &'static str = "no-op";
    const URL_SCHEMES: &'static [&'static str] = &["noop"];
}

impl Connection for NoopConn {
    type Database = Noop;
    type Options = NoopOptions;

    async fn close(self) -> Result<(), Error> {
        Ok(())
    }

    async fn close_hard(self) -> Result<(), Error> {
        Ok(())
    }

    async fn ping(&mut self) -> Result<(), Error> {
        Ok(())
    }

    async fn begin(&mut self) -> Result<Transaction<'_, Noop>, Error> {
        Transaction::begin(self, None).await
    }

    fn shrink_buffers(&mut self) {}

    async fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn should_flush(&self) -> bool {
        false
    }
}

impl ConnectOptions for NoopOptions {
    type Connection = NoopConn;

    fn from_url(_url: &Url) -> Result<Self, Error> {
        Ok(Self)
    }

    async fn connect(&self) -> Result<NoopConn, Error> {
        Ok(NoopConn::new())
    }

    fn log_statements(self, _level: LevelFilter) -> Self {
        self
    }

    fn log_slow_statements(self, _level: LevelFilter, _duration: Duration) -> Self {
        self
    }
}

impl FromStr for NoopOptions {
    type Err = Error;

    fn from_str(_url: &str) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl TransactionManager for NoTransactions {
    type Database = Noop;

    async fn begin(_conn: &mut NoopConn, _statement: Option<SqlStr>) -> Result<(), Error> {
        Ok(())
    }

    async fn commit(_conn: &mut NoopConn) -> Result<(), Error> {
        Ok(())
    }

    async fn rollback(_conn: &mut NoopConn) -> Result<(), Error> {
        Ok(())
    }

    fn start_rollback(_conn: &mut NoopConn) {}

    fn get_transaction_depth(_conn: &NoopConn) -> usize {
        0
    }
}

impl Extend<NoResult> for NoResult {
    fn extend<I: IntoIterator<Item = NoResult>>(&mut self, _more: I) {}
}

impl Arguments for NoArguments {
    type Database = Noop;

    fn reserve(&mut self, _additional: usize, _size: usize) {}

    fn add<'t, T>(&mut self, _value: T) -> Result<(), BoxDynError>
    where
        T: Encode<'t, Noop> + Type<Noop>,
    {
        Ok(())
    }

    fn len(&self) -> usize {
        0
    }
}

impl IntoArguments<Noop> for NoArguments {
    fn into_arguments(self) -> NoArguments {
        self
    }
}

impl fmt::Display for Never {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

impl TypeInfo for Never {
    fn is_null(&self) -> bool {
        match *self {}
    }

    fn name(&self) -> &str {
        match *self {}
    }
}

impl Column for Never {
    type Database = Noop;

    fn ordinal(&self) -> usize {
        match *self {}
    }

    fn name(&self) -> &str {
        match *self {}
    }

    fn type_info(&self) -> &Never {
        match *self {}
    }
}

impl Row for Never {
    type Database = Noop;

    fn columns(&self) -> &[Never] {
        match *self {}
    }

    fn try_get_raw<I: ColumnIndex<Self>>(&self, _index: I) -> Result<Never, Error> {
        match *self {}
    }
}

impl Value for Never {
    type Database = Noop;

    fn as_ref(&self) -> Never {
        match *self {}
    }

    fn type_info(&self) -> Cow<'_, Never> {
        match *self {}
    }

    fn is_null(&self) -> bool {
        match *self {}
    }
}

impl ValueRef<'_> for Never {
    type Database = Noop;

    fn to_owned(&self) -> Never {
        match *self {}
    }

    fn type_info(&self) -> Cow<'_, Never> {
        match *self {}
    }

    fn is_null(&self) -> bool {
        match *self {}
    }
}

impl Statement for Never {
    type Database = Noop;

    fn into_sql(self) -> SqlStr {
        match self {}
    }

    fn sql(&self) -> &SqlStr {
        match *self {}
    }

    fn parameters(&self) -> Option<Either<&[Never], usize>> {
        match *self {}
    }

    fn columns(&self) -> &[Never] {
        match *self {}
    }

    fn query(&self) -> Query<'_, Noop, NoArguments> {
        match *self {}
    }

    fn query_with<A: IntoArguments<Noop>>(&self, _arguments: A) -> Query<'_, Noop, A> {
        match *self {}
    }

    fn query_as<O>(&self) -> QueryAs<'_, Noop, O, NoArguments>
    where
        O: for<'r> FromRow<'r, Never>,
    {
        match *self {}
    }

    fn query_as_with<'s, O, A>(&'s self, _arguments: A) -> QueryAs<'s, Noop, O, A>
    where
        O: for<'r> FromRow<'r, Never>,
        A: IntoArguments<Noop>,
    {
        match *self {}
    }

    fn query_scalar<O>(&self) -> QueryScalar<'_, Noop, O, NoArguments>
    where
        (O,): for<'r> FromRow<'r, Never>,
    {
        match *self {}
    }

    fn query_scalar_with<'s, O, A>(&'s self, _arguments: A) -> QueryScalar<'s, Noop, O, A>
    where
        (O,): for<'r> FromRow<'r, Never>,
        A: IntoArguments<Noop>,
    {
        match *self {}
    }
}
