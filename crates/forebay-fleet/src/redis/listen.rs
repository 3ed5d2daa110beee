//! Passes on what the scripts announce. Announcements only save time: whoever
//! misses one learns the same from its next report.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::dial::Dialler;
use super::fault::{away, describe};
use super::script;
use super::wait::{jitter, pass};
use crate::keeper::{KeeperError, News};
use crate::message::MemberId;

/// How often a connection on which nothing comes is asked whether it still lives.
const QUIET: Duration = Duration::from_secs(5);

/// Listens to the channels of `backends`, and connects again when that ends; comes
/// back only if that makes no sense.
pub(super) async fn listen(
    dialler: &Dialler,
    mut backends: watch::Receiver<BTreeSet<String>>,
    news: UnboundedSender<News>,
    mut rng: fastrand::Rng,
) -> KeeperError {
    let (min, max) = (dialler.settings().reconnect_min, dialler.settings().reconnect_max);
    let mut wait = min;
    loop {
        let mut heard = false;
        let ended = tokio::select! {
            ended = listen_once(dialler, &mut backends, &news, &mut heard) => ended,
            () = news.closed() => return away("nobody listens any more"),
        };
        if matches!(ended, KeeperError::Unusable { .. }) {
            return ended;
        }
        tracing::debug!(error = %ended, "announcements of redis broke off");
        wait = if heard { min } else { (wait * 2).min(max) };
        tokio::select! {
            () = pass(jitter(wait, &mut rng)) => {}
            () = news.closed() => return away("nobody listens any more"),
        }
    }
}

async fn listen_once(
    dialler: &Dialler,
    backends: &mut watch::Receiver<BTreeSet<String>>,
    news: &UnboundedSender<News>,
    heard: &mut bool,
) -> KeeperError {
    let (sender, mut pushes) = unbounded_channel();
    let mut connection = match dialler.subscriber(sender).await {
        Ok(connection) => connection,
        Err(error) => return error,
    };
    let mut subscribed = BTreeSet::new();
    loop {
        let wanted = backends.borrow_and_update().clone();
        for backend in wanted {
            if subscribed.contains(&backend) {
                continue;
            }
            if let Err(error) = connection.subscribe(script::channel(&backend)).await {
                return describe(&error);
            }
            subscribed.insert(backend);
        }
        *heard = true;
        tokio::select! {
            gone = pass_on(&mut pushes, news) => return gone,
            changed = backends.changed() => if changed.is_err() {
                return away("the keeper is gone");
            },
            () = pass(QUIET) => {
                let alive: Result<Value, _> = redis::cmd("PING").query_async(&mut connection).await;
                if let Err(error) = alive {
                    return describe(&error);
                }
            }
        }
    }
}

/// Ends when the connection does.
async fn pass_on(
    pushes: &mut UnboundedReceiver<PushInfo>,
    news: &UnboundedSender<News>,
) -> KeeperError {
    while let Some(push) = pushes.recv().await {
        match push.kind {
            PushKind::Disconnection => break,
            PushKind::Message => {
                for item in read(&push.data) {
                    // a closed channel is noticed by the caller
                    drop(news.send(item));
                }
            }
            _ => {}
        }
    }
    away("the connection for announcements broke")
}

/// A message: the channel, then the members as a list in JSON.
fn read(data: &[Value]) -> Vec<News> {
    let [Value::BulkString(channel), Value::BulkString(payload)] = data else {
        return Vec::new();
    };
    let Some(backend) = std::str::from_utf8(channel).ok().and_then(script::backend_of) else {
        return Vec::new();
    };
    let members: Vec<String> = serde_json::from_slice(payload).unwrap_or_default();
    let news = |member| News { backend: backend.to_owned(), member: MemberId::from_stored(member) };
    members.into_iter().map(news).collect()
}
