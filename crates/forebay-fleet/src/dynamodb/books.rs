//! Booking a report: one transaction over the registry, the counter and the
//! member's lease item, made from a copy of the registry that is kept between
//! reports. If the copy was old, the refusal brings the new one along. A report
//! that says only "alive" writes the lease item alone.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    CancellationReason, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};
use tokio::time::Instant;

use crate::keeper::KeeperError;
use crate::message::{Answer, MemberId, Report};

use super::draft::{Circumstances, Departure, Draft, Extent};
use super::errors::{Call, away, busy, explain, unusable};
use super::items::{
    Item, Page, TOMBSTONE_S, counter_key, get_number, is_gone, key, lease_key, number,
    registry_key, text,
};
use super::{Backend, DynamoKeeper};

/// Most tries of one report; the deadline comes first as a rule.
pub(super) const TRIES_MAX: u32 = 200;
const BACKOFF_US: u64 = 4_000;
/// Others wrote first, and what they wrote is known: whoever waits now loses to
/// those who do not.
pub(super) const OVERTAKEN_US_MAX: u64 = 20_000;
/// DynamoDB asks for patience.
const THROTTLED_US_MAX: u64 = 200_000;

/// What a part of the transaction is about.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Registry,
    Counter,
    Own,
    Silent(MemberId),
}

/// Why a transaction was not booked.
#[derive(Debug, Default)]
struct Refusal {
    /// The registry as it is, if that was the reason; the inner `None` if there is none.
    registry: Option<Option<Page>>,
    /// The member's own lease item as it is, if that was the reason.
    own: Option<Item>,
    /// The counter has no room.
    limit: bool,
    /// Another transaction was at it.
    conflict: bool,
    /// Too many requests.
    throttled: bool,
}

/// What came of saying that the member is alive.
enum Renewed {
    Alive,
    Answer(Answer),
    /// There is no lease item: it must be made anew.
    Missing,
}

impl DynamoKeeper {
    /// Books a report within the deadline.
    pub(super) async fn book_report(&self, report: &Report) -> Result<Answer, KeeperError> {
        let backend = self.backend(&report.backend);
        let deadline = self.clock.now() + self.timeout;
        let heartbeat = Duration::from_millis(report.profile.heartbeat_ms);
        {
            let mut books = backend.books.lock();
            books.watch.wake(self.clock.now(), heartbeat);
            books.me = Some(report.member.clone());
        }
        let booking = async {
            let _turn = self.busy.acquire().await;
            let known = backend.books.lock().page.clone();
            let fresh = known.is_none();
            let page = match known {
                Some(page) => Some(page),
                None => self.fetch(&report.backend, &backend).await?,
            };
            let look = self.look(report, &backend, page.as_deref());
            let book = self.book(report, &backend, page.clone(), fresh, deadline);
            let (answer, ()) = tokio::join!(book, look);
            self.due_changed.notify_one();
            answer
        };
        let late = || away(format!("no answer within {} ms", self.timeout.as_millis()));
        self.clock.until(deadline, booking).await.unwrap_or_else(|| Err(late()))
    }

    async fn book(
        &self,
        report: &Report,
        backend: &Backend,
        mut page: Option<Arc<Page>>,
        mut fresh: bool,
        deadline: Instant,
    ) -> Result<Answer, KeeperError> {
        // whether the lease item already has this report's number
        let mut renewed = false;
        let mut missing = false;
        let mut nothing_to_grant = false;
        let mut reason = "";
        let mut wait_us = 0;
        for tried in 0..TRIES_MAX {
            if wait_us > 0 && !self.back_off(tried, wait_us, deadline).await {
                break;
            }
            wait_us = 0;
            let at = Circumstances {
                now: self.clock.now(),
                now_ms: self.server.now_ms(),
                nothing_to_grant,
            };
            let draft = Draft::new(page.clone(), &backend.books.lock().watch, report, at);
            if draft.extent == Extent::Nothing {
                if fresh {
                    return Ok(draft.answer);
                }
                page = self.fetch(&report.backend, backend).await?;
                fresh = true;
                continue;
            }
            if draft.extent == Extent::Beat && renewed {
                return Ok(draft.answer);
            }
            if draft.extent == Extent::Beat && !missing {
                let (beat, books) =
                    tokio::join!(self.renew(report), self.fetch(&report.backend, backend));
                match beat? {
                    Renewed::Alive => renewed = true,
                    Renewed::Missing => missing = true,
                    Renewed::Answer(answer) => return Ok(answer),
                }
                page = books?;
                fresh = true;
                continue;
            }
            let refusal = match self.write(report, backend, &draft, renewed).await? {
                None => return Ok(draft.answer),
                Some(refusal) => refusal,
            };
            if let Some(own) = refusal.own {
                return Ok(if is_gone(&own) { Answer::Reaped } else { Answer::Stale });
            }
            reason = match &refusal {
                Refusal { throttled: true, .. } => "too many requests",
                Refusal { conflict: true, .. } => "transactions in conflict",
                Refusal { registry: Some(_), .. } => "others write the same books",
                Refusal { limit: true, .. } => "the counter item is at the limit",
                _ => "a member thought dead is alive",
            };
            wait_us = if refusal.throttled { THROTTLED_US_MAX } else { OVERTAKEN_US_MAX };
            if refusal.limit && refusal.registry.is_none() {
                self.counter_disagrees(&report.backend, &draft);
                nothing_to_grant = true;
            }
            if let Some(registry) = refusal.registry {
                page = registry.map(|page| self.keep(backend, page));
                fresh = true;
            }
        }
        Err(busy(format!("a report on {} was not booked: {reason}", report.backend)))
    }

    /// Waits for a random while, longer each time; `false` if there is no time left.
    pub(super) async fn back_off(&self, tried: u32, most_us: u64, deadline: Instant) -> bool {
        let most_us = (BACKOFF_US << tried.min(10)).min(most_us);
        let wait = Duration::from_micros(self.random(most_us));
        let until = self.clock.now() + wait;
        if until >= deadline {
            return false;
        }
        self.clock.sleep_until(until).await;
        true
    }

    /// Reads the registry item.
    pub(super) async fn fetch(
        &self,
        name: &str,
        backend: &Backend,
    ) -> Result<Option<Arc<Page>>, KeeperError> {
        let got = self.client.get_item().table_name(&self.table).consistent_read(true);
        let got = got.set_key(Some(key(registry_key(name)))).send().await;
        let got = got.map_err(|error| explain(&self.table, Call::Get, &error))?;
        let page = got.item().map(Page::read).transpose()?;
        Ok(match page {
            Some(page) => Some(self.keep(backend, page)),
            None => {
                backend.books.lock().page = None;
                None
            }
        })
    }

    /// Keeps a copy of the registry, unless a newer one is kept.
    fn keep(&self, backend: &Backend, page: Page) -> Arc<Page> {
        let mut books = backend.books.lock();
        let page = Arc::new(page);
        let newer = books.page.as_ref().is_none_or(|kept| {
            kept.ledger.generation != page.ledger.generation || kept.version < page.version
        });
        if newer {
            books.page = Some(page.clone());
        }
        if let Some(kept) = books.page.clone() {
            books.watch.books(&kept.ledger, self.clock.now());
        }
        page
    }

    /// Says in the lease item that the member is alive.
    async fn renew(&self, report: &Report) -> Result<Renewed, KeeperError> {
        let sent = self
            .client
            .update_item()
            .table_name(&self.table)
            .set_key(Some(key(lease_key(&report.backend, &report.member))))
            .update_expression("SET seq = :seq, beat = beat + :one, updated_ms = :now")
            .condition_expression(
                "attribute_exists(beat) AND attribute_not_exists(gone) AND seq < :seq",
            )
            .expression_attribute_values(":seq", number(report.seq))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":now", number(self.server.now_ms()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let Err(error) = sent else { return Ok(Renewed::Alive) };
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                Ok(match failed.item() {
                    Some(old) if is_gone(old) => Renewed::Answer(Answer::Reaped),
                    Some(old) if get_number(old, "beat").is_some() => {
                        Renewed::Answer(Answer::Stale)
                    }
                    _ => Renewed::Missing,
                })
            }
            _ => Err(explain(&self.table, Call::Update, &error)),
        }
    }

    /// Writes a draft; `Some` if the table is not as the draft needs it.
    async fn write(
        &self,
        report: &Report,
        backend: &Backend,
        draft: &Draft,
        renewed: bool,
    ) -> Result<Option<Refusal>, KeeperError> {
        let name = &report.backend;
        let now_ms = self.server.now_ms();
        let page = Page {
            ledger: draft.ledger.clone(),
            // a first version that no earlier books in this place can have had
            version: draft.base.as_ref().map_or(now_ms, |base| base.version + 1),
        };
        let mut parts = vec![Part::Registry];
        let mut items = vec![self.registry_part(name, draft.base.as_deref(), &page, now_ms)?];
        if draft.delta() != 0 || draft.limit_changes() {
            parts.push(Part::Counter);
            items.push(self.counter_part(name, draft, now_ms)?);
        }
        parts.push(Part::Own);
        let leaves = draft.departures.contains(&Departure::Own);
        items.push(self.own_part(report, draft, leaves, renewed, now_ms)?);
        for departure in &draft.departures {
            if let Departure::Silent(member, beat) = departure {
                parts.push(Part::Silent(member.clone()));
                items.push(self.silent_part(name, member, Some(*beat), now_ms)?);
            }
        }
        let Some(reasons) = self.transact(items).await? else {
            self.keep(backend, page);
            return Ok(None);
        };
        self.read_refusal(backend, &parts, &reasons).map(Some)
    }

    /// Runs a transaction; `Some` with the reasons if it was cancelled.
    pub(super) async fn transact(
        &self,
        items: Vec<TransactWriteItem>,
    ) -> Result<Option<Vec<CancellationReason>>, KeeperError> {
        // with a token of its own, a second sending of it would not book it twice
        let token = format!("{:016x}{:016x}", self.random(u64::MAX), self.random(u64::MAX));
        let call = self.client.transact_write_items().client_request_token(token);
        let Err(error) = call.set_transact_items(Some(items)).send().await else {
            return Ok(None);
        };
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                Ok(Some(cancelled.cancellation_reasons().to_vec()))
            }
            _ => Err(explain(&self.table, Call::Transact, &error)),
        }
    }

    fn read_refusal(
        &self,
        backend: &Backend,
        parts: &[Part],
        reasons: &[CancellationReason],
    ) -> Result<Refusal, KeeperError> {
        let mut refusal = Refusal::default();
        for (part, reason) in parts.iter().zip(reasons) {
            match reason.code() {
                None | Some("None") => {}
                Some("ConditionalCheckFailed") => match part {
                    Part::Registry => {
                        refusal.registry = Some(reason.item().map(Page::read).transpose()?);
                    }
                    Part::Counter => refusal.limit = true,
                    Part::Own => refusal.own = Some(reason.item().cloned().unwrap_or_default()),
                    Part::Silent(member) => {
                        let beat = reason.item().and_then(|item| get_number(item, "beat"));
                        backend.books.lock().watch.beat(member, beat, self.clock.now());
                    }
                },
                Some("TransactionConflict") => refusal.conflict = true,
                Some("ThrottlingError" | "ProvisionedThroughputExceeded") => {
                    refusal.throttled = true;
                }
                Some(code) => {
                    return Err(unusable(
                        format!("a transaction was cancelled: {code}"),
                        format!("check the table {} and this role's permissions", self.table),
                    ));
                }
            }
        }
        Ok(refusal)
    }

    pub(super) fn registry_part(
        &self,
        name: &str,
        base: Option<&Page>,
        page: &Page,
        now_ms: u64,
    ) -> Result<TransactWriteItem, KeeperError> {
        let put = Put::builder()
            .table_name(&self.table)
            .set_item(Some(page.write(name, now_ms)?))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = match base {
            None => put.condition_expression("attribute_not_exists(pk)"),
            Some(base) => put
                .condition_expression("#version = :version AND generation = :generation")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":version", number(base.version))
                .expression_attribute_values(":generation", text(&base.ledger.generation)),
        };
        let put = put.build().map_err(|error| unusable(error.to_string(), "report this"))?;
        Ok(TransactWriteItem::builder().put(put).build())
    }

    /// The counter guards the limit a second time, by itself.
    fn counter_part(
        &self,
        name: &str,
        draft: &Draft,
        now_ms: u64,
    ) -> Result<TransactWriteItem, KeeperError> {
        let (delta, limit) = (draft.delta(), draft.ledger.limits().0.open);
        let update = Update::builder()
            .table_name(&self.table)
            .set_key(Some(key(counter_key(name))))
            .expression_attribute_names("#limit", "limit")
            .expression_attribute_values(":limit", number(limit))
            .expression_attribute_values(":now", number(now_ms));
        let update = if draft.base.is_none() {
            update
                .update_expression("SET active = :total, #limit = :limit, updated_ms = :now")
                .expression_attribute_values(":total", number(draft.ledger.total()))
        } else {
            update
                .update_expression(
                    "SET active = if_not_exists(active, :before) + :delta, \
                     #limit = :limit, updated_ms = :now",
                )
                .expression_attribute_values(":before", number(draft.total_before()))
                .expression_attribute_values(":delta", number(delta))
        };
        // in a window members say what they have, whatever the limit
        let update = if delta > 0 && draft.base.is_some() && draft.ledger.window.is_none() {
            update
                .condition_expression("attribute_not_exists(active) OR active <= :room")
                .expression_attribute_values(":room", number(i64::from(limit) - delta))
        } else {
            update
        };
        let update = update.build().map_err(|error| unusable(error.to_string(), "report this"))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    fn own_part(
        &self,
        report: &Report,
        draft: &Draft,
        leaves: bool,
        renewed: bool,
        now_ms: u64,
    ) -> Result<TransactWriteItem, KeeperError> {
        let held = draft.ledger.members.get(&report.member).map_or(0, |entry| entry.held);
        let unheard = if renewed { "seq = :seq" } else { "seq < :seq" };
        let set = "SET held = :held, seq = :seq, beat = if_not_exists(beat, :start) + :one, \
                   updated_ms = :now, created_ms = if_not_exists(created_ms, :now), \
                   service_name = :service";
        let update = Update::builder()
            .table_name(&self.table)
            .set_key(Some(key(lease_key(&report.backend, &report.member))))
            .condition_expression(format!(
                "attribute_not_exists(gone) AND (attribute_not_exists(seq) OR {unheard})"
            ))
            .expression_attribute_values(":held", number(held))
            .expression_attribute_values(":seq", number(report.seq))
            // a beat that no earlier item in this place can have had
            .expression_attribute_values(":start", number(now_ms))
            .expression_attribute_values(":one", number(1))
            .expression_attribute_values(":now", number(now_ms))
            .expression_attribute_values(":service", text(&report.profile.service))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let update = if leaves {
            update
                .update_expression(format!("{set}, gone = :gone, ttl_epoch = :ttl"))
                .expression_attribute_values(":gone", text("left"))
                .expression_attribute_values(":ttl", number(now_ms / 1000 + TOMBSTONE_S))
        } else {
            update.update_expression(format!("{set} REMOVE ttl_epoch"))
        };
        let update = update.build().map_err(|error| unusable(error.to_string(), "report this"))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    /// Makes a lease item a tombstone; only if its beat is still `beat`, if that is given.
    pub(super) fn silent_part(
        &self,
        name: &str,
        member: &MemberId,
        beat: Option<Option<u64>>,
        now_ms: u64,
    ) -> Result<TransactWriteItem, KeeperError> {
        let update = Update::builder()
            .table_name(&self.table)
            .set_key(Some(key(lease_key(name, member))))
            .update_expression(
                "SET gone = :gone, held = :none, updated_ms = :now, ttl_epoch = :ttl",
            )
            .expression_attribute_values(":gone", text("reaped"))
            .expression_attribute_values(":none", number(0))
            .expression_attribute_values(":now", number(now_ms))
            .expression_attribute_values(":ttl", number(now_ms / 1000 + TOMBSTONE_S))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let update = match beat {
            None => update,
            Some(None) => update.condition_expression("attribute_not_exists(beat)"),
            Some(Some(beat)) => update
                .condition_expression("beat = :beat")
                .expression_attribute_values(":beat", number(beat)),
        };
        let update = update.build().map_err(|error| unusable(error.to_string(), "report this"))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }
}
