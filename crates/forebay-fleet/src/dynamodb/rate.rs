//! The fleet's rate in one item, written on condition of its version. The instants
//! in it are DynamoDB's time as [`ServerClock`](super::clock) knows it.

use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::ReturnValuesOnConditionCheckFailure;

use crate::keeper::KeeperError;
use crate::message::{Limits, Reserve, Reserved};
use crate::rate::RateBook;

use super::books::{OVERTAKEN_US_MAX, TRIES_MAX};
use super::errors::{Call, away, busy, explain};
use super::items::{RatePage, key, number, rate_key};
use super::{Backend, DynamoKeeper};

/// The copy of the rate item that is kept between calls.
#[derive(Debug, Default)]
pub(super) enum RateCopy {
    /// Nothing is known.
    #[default]
    Unknown,
    /// There is no such item.
    Missing,
    /// It was like this.
    Known(RatePage),
}

impl DynamoKeeper {
    pub(super) async fn reserve_permits(&self, wish: &Reserve) -> Result<Reserved, KeeperError> {
        let (now_us, mut reserved) = self
            .change_rate(&wish.backend, &wish.limits, |book, limits, now_us| {
                let reserved = book.reserve(wish, limits, now_us);
                ((now_us, reserved), reserved.permits > 0)
            })
            .await?;
        // the instants stay; they are counted from now, and no longer from before the request
        let passed = self.server.now_us() as i64 - now_us as i64;
        reserved.lead_us -= passed;
        Ok(reserved)
    }

    pub(super) async fn slow_down(
        &self,
        backend: &str,
        limits: &Limits,
    ) -> Result<(), KeeperError> {
        let refuse = |book: &mut RateBook, limits: &Limits, now_us: u64| {
            book.refused(limits, now_us);
            ((), true)
        };
        self.change_rate(backend, limits, refuse).await
    }

    /// Changes the rate item. `change` says what came of it and whether to write it.
    async fn change_rate<T>(
        &self,
        name: &str,
        limits: &Limits,
        change: impl Fn(&mut RateBook, &Limits, u64) -> (T, bool),
    ) -> Result<T, KeeperError> {
        let backend = self.backend(name);
        let deadline = self.clock.now() + self.timeout;
        let late = || away(format!("no answer within {} ms", self.timeout.as_millis()));
        let limits = self.limits_in_effect(&backend, limits);
        let changing = async {
            let mut copy = backend.rate.lock().await;
            let _turn = self.busy.acquire().await;
            let mut fresh = false;
            for tried in 0..TRIES_MAX {
                if tried > 1 && !self.back_off(tried, OVERTAKEN_US_MAX, deadline).await {
                    break;
                }
                if matches!(*copy, RateCopy::Unknown) {
                    *copy = self.fetch_rate(name).await?;
                    fresh = true;
                }
                let now_us = self.server.now_us();
                let (mut book, version) = match &*copy {
                    RateCopy::Known(page) => (page.book.clone(), Some(page.version)),
                    _ => (RateBook::empty(&limits, now_us), None),
                };
                let (value, write) = change(&mut book, &limits, now_us);
                // a bucket that is new is written down, or it would be new again at the next look
                let write = write || version.is_none();
                if !write && fresh {
                    return Ok(value);
                }
                // unless it comes to an end, its outcome is unknown
                *copy = RateCopy::Unknown;
                if !write {
                    continue;
                }
                // a first version that no earlier item in this place can have had
                let next = version.map_or(now_us, |version| version + 1);
                let page = RatePage { book, version: next };
                match self.put_rate(name, version, &page, now_us).await? {
                    None => {
                        *copy = RateCopy::Known(page);
                        return Ok(value);
                    }
                    Some(found) => {
                        *copy = found;
                        fresh = true;
                    }
                }
            }
            Err(busy(format!("the rate of {name} was not changed: others write it too")))
        };
        self.clock.until(deadline, changing).await.unwrap_or_else(|| Err(late()))
    }

    /// What the books say of the rate, as far as they are known here.
    fn limits_in_effect(&self, backend: &Backend, own: &Limits) -> Limits {
        let page = backend.books.lock().page.clone();
        let kept = page.map(|page| page.ledger.limits().0);
        kept.filter(|limits| limits.rate > 0).unwrap_or(*own)
    }

    async fn fetch_rate(&self, name: &str) -> Result<RateCopy, KeeperError> {
        let got = self.client.get_item().table_name(&self.table).consistent_read(true);
        let got = got.set_key(Some(key(rate_key(name)))).send().await;
        let got = got.map_err(|error| explain(&self.table, Call::Get, &error))?;
        Ok(got.item().and_then(RatePage::read).map_or(RateCopy::Missing, RateCopy::Known))
    }

    /// Writes the rate item if it still has this version; else `Some` with what it has.
    pub(super) async fn put_rate(
        &self,
        name: &str,
        version: Option<u64>,
        page: &RatePage,
        now_us: u64,
    ) -> Result<Option<RateCopy>, KeeperError> {
        let put = self
            .client
            .put_item()
            .table_name(&self.table)
            .set_item(Some(page.write(name, now_us)))
            .expression_attribute_names("#version", "version")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = match version {
            None => put.condition_expression("attribute_not_exists(#version)"),
            Some(version) => put
                .condition_expression("#version = :version")
                .expression_attribute_values(":version", number(version)),
        };
        let Err(error) = put.send().await else { return Ok(None) };
        match error.as_service_error() {
            Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                let found = failed.item().and_then(RatePage::read);
                Ok(Some(found.map_or(RateCopy::Missing, RateCopy::Known)))
            }
            _ => Err(explain(&self.table, Call::Put, &error)),
        }
    }
}
