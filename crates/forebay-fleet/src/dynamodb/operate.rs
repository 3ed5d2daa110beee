//! What operators do, and looking after the other members.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::{
    KeysAndAttributes, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use crate::keeper::{KeeperError, News};
use crate::ledger::{Ledger, Moment};
use crate::message::{BackendInfo, MemberId, Report};
use crate::rate::RateBook;

use super::draft::Draft;
use super::errors::{Call, away, busy, explain, unusable};
use super::items::{
    Item, Page, REGISTRY, RatePage, counter_key, get_number, get_text, is_gone, key, lease_key,
    number, registry_key,
};
use super::watch::window_length;
use super::{Backend, DynamoKeeper};

/// DynamoDB gives no more items at once.
const BATCH_MAX: usize = 100;
const TRIES_MAX: u32 = 20;

impl DynamoKeeper {
    /// Reads the beats of the others, once per heartbeat.
    pub(super) async fn look(&self, report: &Report, backend: &Backend, page: Option<&Page>) {
        let Some(page) = page else { return };
        let heartbeat = Duration::from_millis(report.profile.heartbeat_ms);
        let now = self.clock.now();
        let members = backend.books.lock().watch.look(&page.ledger, &report.member, heartbeat, now);
        for some in members.chunks(BATCH_MAX) {
            match self.lease_items(&report.backend, some).await {
                Ok(items) => {
                    let now = self.clock.now();
                    let mut books = backend.books.lock();
                    for (member, item) in items {
                        let beat = item.and_then(|item| get_number(&item, "beat"));
                        books.watch.beat(&member, beat, now);
                    }
                }
                Err(error @ KeeperError::Unusable { .. }) => {
                    tracing::warn!("members that died cannot be found: {error}");
                }
                Err(error) => tracing::debug!("did not look after other members: {error}"),
            }
        }
    }

    /// Wakes members when somebody is to be reaped or a window to be closed; what
    /// others do is not announced. Comes back only when nobody listens any more.
    pub(super) async fn tell_when_due(&self, news: UnboundedSender<News>) -> KeeperError {
        loop {
            let changed = self.due_changed.notified();
            let Some((at, backend)) = self.next_due() else {
                changed.await;
                continue;
            };
            if self.clock.until(at, changed).await.is_some() {
                continue;
            }
            let mut books = backend.1.books.lock();
            books.announced = Some(at);
            let told = books.me.clone().map(|member| News { backend: backend.0, member });
            drop(books);
            if told.is_some_and(|told| news.send(told).is_err()) {
                return away("nobody listens");
            }
        }
    }

    /// What is due first of all that has not been announced.
    fn next_due(&self) -> Option<(Instant, (String, Arc<Backend>))> {
        let backends = self.backends.lock();
        let dues = backends.iter().filter_map(|(name, backend)| {
            let books = backend.books.lock();
            let due = books.watch.next_due(&books.page.as_ref()?.ledger, books.me.as_ref()?)?;
            let anew = books.announced.is_none_or(|announced| announced < due);
            anew.then(|| (due, (name.clone(), backend.clone())))
        });
        dues.min_by_key(|(due, _)| *due)
    }

    /// The lease items of these members, `None` for one that has none. Those that
    /// DynamoDB was too busy to give are left out.
    async fn lease_items(
        &self,
        name: &str,
        members: &[MemberId],
    ) -> Result<Vec<(MemberId, Option<Item>)>, KeeperError> {
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let keys = members.iter().map(|member| key(lease_key(name, member))).collect();
        let wanted = KeysAndAttributes::builder()
            .set_keys(Some(keys))
            .projection_expression("pk, beat, gone, updated_ms")
            .build()
            .map_err(|error| unusable(error.to_string(), "report this"))?;
        let call = self.client.batch_get_item().request_items(&self.table, wanted);
        let got = call.send().await;
        let got = got.map_err(|error| explain(&self.table, Call::BatchGet, &error))?;
        let items = got.responses().and_then(|tables| tables.get(&self.table));
        let items = items.map(Vec::as_slice).unwrap_or_default();
        let left = got.unprocessed_keys().and_then(|tables| tables.get(&self.table));
        let left = left.map(KeysAndAttributes::keys).unwrap_or_default();
        let of = |items: &[Item], pk: &str| {
            items.iter().find(|item| get_text(item, "pk") == Some(pk)).cloned()
        };
        let found = members.iter().filter_map(|member| {
            let pk = lease_key(name, member);
            let asked_again = of(left, &pk).is_some();
            (!asked_again).then(|| (member.clone(), of(items, &pk)))
        });
        Ok(found.collect())
    }

    /// The counter item has no room although the books have: something else writes it.
    pub(super) fn counter_disagrees(&self, name: &str, draft: &Draft) {
        let backend = self.backend(name);
        if !std::mem::replace(&mut backend.books.lock().warned, true) {
            tracing::warn!(
                booked = draft.total_before(),
                "nothing more is granted for {name}: its counter item {} counts more than the {} \
                 leases in the books; if nothing else takes leases from it, set its attribute \
                 `active` to that number",
                counter_key(name),
                draft.total_before()
            );
        }
    }

    /// Makes books for a fleet that is known to be new.
    pub(super) async fn setup_backend(&self, name: &str) -> Result<bool, KeeperError> {
        let call = self.client.get_item().table_name(&self.table).consistent_read(true);
        let got = call.set_key(Some(key(registry_key(name)))).send().await;
        let got = got.map_err(|error| explain(&self.table, Call::Get, &error))?;
        if got.item().is_some() {
            return Ok(false);
        }
        let (now_ms, now_us) = (self.server.now_ms(), self.server.now_us());
        let moment = Moment { now_ms, run_id: "", by_time: false };
        let page = Page { ledger: Ledger::ready(self.random(u64::MAX), moment), version: now_ms };
        let registry = self.registry_part(name, None, &page, now_ms)?;
        let counter =
            self.set_counter(name, "SET active = :delta, updated_ms = :now", 0, now_ms)?;
        if let Some(reasons) = self.transact(vec![registry, counter]).await? {
            let codes: Vec<&str> = reasons.iter().filter_map(|reason| reason.code()).collect();
            if codes.first() == Some(&"ConditionalCheckFailed") {
                return Ok(false);
            }
            return Err(busy(codes.join(", ")));
        }
        // a bucket that is in use is not filled up
        let full = RatePage { book: RateBook::default(), version: now_us };
        self.put_rate(name, None, &full, now_us).await?;
        Ok(true)
    }

    fn set_counter(
        &self,
        name: &str,
        expression: &str,
        delta: i64,
        now_ms: u64,
    ) -> Result<TransactWriteItem, KeeperError> {
        let update = Update::builder()
            .table_name(&self.table)
            .set_key(Some(key(counter_key(name))))
            .update_expression(expression)
            .expression_attribute_values(":delta", number(delta))
            .expression_attribute_values(":now", number(now_ms))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(|error| unusable(error.to_string(), "report this"))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    /// The books for operators.
    pub(super) async fn show(&self, name: &str) -> Result<BackendInfo, KeeperError> {
        let backend = self.backend(name);
        let Some(page) = self.fetch(name, &backend).await? else {
            return Ok(BackendInfo {
                backend: name.to_owned(),
                generation: String::new(),
                limit: 0,
                total: 0,
                declaring_ms: 0,
                members: Vec::new(),
            });
        };
        let ledger = &page.ledger;
        let mut members = ledger.list(None);
        let ids: Vec<MemberId> = ledger.members.keys().cloned().collect();
        for some in ids.chunks(BATCH_MAX) {
            for (member, item) in self.lease_items(name, some).await? {
                let renewed_ms = item.filter(|item| !is_gone(item));
                let renewed_ms = renewed_ms.and_then(|item| get_number(&item, "updated_ms"));
                let info = members.iter_mut().find(|info| info.member == member);
                if let (Some(info), Some(renewed_ms)) = (info, renewed_ms) {
                    info.silent_ms = Some(self.server.now_ms().saturating_sub(renewed_ms));
                }
            }
        }
        let now = self.clock.now();
        let left = backend.books.lock().watch.window_left(ledger, window_length(ledger, 0), now);
        Ok(BackendInfo {
            backend: name.to_owned(),
            generation: ledger.generation.clone(),
            limit: ledger.limits().0.open,
            total: ledger.total(),
            declaring_ms: left.map_or(0, |left| left.as_millis() as u64),
            members,
        })
    }

    pub(super) async fn list_backends(&self) -> Result<Vec<String>, KeeperError> {
        let mut names = Vec::new();
        let mut from = None;
        loop {
            let page = self
                .client
                .scan()
                .table_name(&self.table)
                .filter_expression("begins_with(pk, :registry)")
                .projection_expression("pk")
                .expression_attribute_values(":registry", super::items::text(REGISTRY))
                .set_exclusive_start_key(from.take())
                .send()
                .await
                .map_err(|error| explain(&self.table, Call::Scan, &error))?;
            let keys = page.items().iter().filter_map(|item| get_text(item, "pk"));
            names.extend(keys.filter_map(|pk| pk.strip_prefix(REGISTRY)).map(str::to_owned));
            from = page.last_evaluated_key().cloned();
            if from.is_none() {
                names.sort();
                return Ok(names);
            }
        }
    }

    /// Takes a member's leases back at an operator's word.
    pub(super) async fn reap_member(
        &self,
        name: &str,
        member: &MemberId,
    ) -> Result<Option<u32>, KeeperError> {
        let backend = self.backend(name);
        for _ in 0..TRIES_MAX {
            let Some(page) = self.fetch(name, &backend).await? else { return Ok(None) };
            let mut ledger = page.ledger.clone();
            let Some(entry) = ledger.reap(member) else { return Ok(None) };
            let leases = entry.held + entry.reserved;
            let now_ms = self.server.now_ms();
            let next = Page { ledger, version: page.version + 1 };
            let less = "SET active = active + :delta, updated_ms = :now";
            let items = vec![
                self.registry_part(name, Some(&page), &next, now_ms)?,
                self.set_counter(name, less, -i64::from(leases), now_ms)?,
                self.silent_part(name, member, None, now_ms)?,
            ];
            if self.transact(items).await?.is_none() {
                return Ok(Some(leases));
            }
        }
        Err(busy(format!("others write the books of {name}; try again")))
    }
}
