//! What members and keepers say to each other. A member *reports* its whole
//! holding, never a change of it, so a message that is lost, doubled or late
//! does no harm; the keeper *answers* with what it has booked.

use serde::{Deserialize, Serialize};

/// One life of one process: an instance's name and a random epoch. A process
/// that starts again, or that was reaped, is another member.
///
/// ```
/// use forebay_fleet::MemberId;
/// let member = MemberId::new("web-1", 0xbeef);
/// assert_eq!(member.to_string(), "web-1@000000000000beef");
/// assert_eq!(member.instance(), "web-1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(String);

impl MemberId {
    /// The member that `instance` is in its life `epoch`.
    pub fn new(instance: &str, epoch: u64) -> Self {
        Self(format!("{instance}@{epoch:016x}"))
    }

    /// As a keeper stored it.
    pub fn from_stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The instance without its epoch.
    pub fn instance(&self) -> &str {
        self.0.rsplit_once('@').map_or(&self.0, |(instance, _)| instance)
    }

    /// The form in which keepers store it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for MemberId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a member says of a backend's limits. Members that differ are told so, and
/// the lowest value among those with the highest version counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Connections the fleet may have open; at most [`Limits::MAX`].
    pub open: u32,
    /// Connections the fleet may open a second; 0 if the rate is not shared.
    pub rate: u32,
    /// Connections it may open at once after a quiet time.
    pub burst: u32,
    /// Rises with each deliberate change, so that during a rolling update the
    /// newest limits count and not each member's in turn.
    pub version: u32,
}

impl Limits {
    /// The largest value of each limit, and no limit in effect.
    pub const MAX: u32 = (1 << 22) - 1;
    /// The largest version.
    pub const VERSION_MAX: u32 = (1 << 30) - 1;
}

/// What does not change from report to report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// The service that the member is an instance of.
    pub service: String,
    /// Where the member can be reached, if anywhere.
    pub peer: String,
    /// Its weight among the shares; at least 1.
    pub weight: u32,
    /// The limits it was configured with, less what is reserved for outsiders.
    pub limits: Limits,
    /// It fences itself this long after its last answered report, less a margin.
    pub ttl_ms: u64,
    /// How often it reports when nothing changes.
    pub heartbeat_ms: u64,
    /// Clocks may differ by this much.
    pub margin_ms: u64,
    /// Silent for this long, its leases go to others; at least `ttl_ms`.
    pub reclaim_ms: u64,
    /// An offline share is at most the limit divided by this.
    pub divisor: u32,
}

/// A member's report on one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The backend.
    pub backend: String,
    /// The member.
    pub member: MemberId,
    /// Rises with each report of this member on this backend; 1 joins.
    pub seq: u64,
    /// The keeper's generation as the member knows it.
    pub generation: Option<String>,
    /// Leases it keeps. All others that it may have had are given back.
    pub held: u32,
    /// Leases it would like to have in all, at least `held`.
    pub want: u32,
    /// Checkouts that wait for a connection.
    pub waiters: u32,
    /// The offline share that it goes by.
    pub share: u32,
    /// Time between sending its last answered report and this one, on its own clock.
    pub elapsed_ms: Option<u64>,
    /// The backend refused a connection because too many are open: grant nothing
    /// to anybody for this long; 0 if it did not.
    pub pause_ms: u64,
    /// The member goes, and holds nothing any more.
    pub leave: bool,
    /// A random number, of which a new generation is made if there is none.
    pub nonce: u64,
    /// What does not change.
    pub profile: Profile,
}

/// A keeper's answer to a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A report with this or a later number has been booked before.
    Stale,
    /// The keeper does not know this member any more: others may have its leases.
    Reaped,
    /// Booked.
    Booked(Booking),
}

/// What the keeper has booked.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Booking {
    /// The keeper's generation.
    pub generation: String,
    /// The leases that the member has now: what it kept, and what it was granted.
    pub held: u32,
    /// What it may keep, or grow to, while the keeper is away.
    pub share: u32,
    /// Leases to be given back as soon as their connections are idle.
    pub recall: u32,
    /// Somebody waits: keep no lease unused.
    pub contended: bool,
    /// The limit that counts.
    pub limit: u32,
    /// A member whose limit that is.
    pub limit_by: String,
    /// Leases booked for all members.
    pub total: u32,
    /// Members that are alive.
    pub members: u32,
    /// The keeper has lost data, or is new: nothing is granted for this long.
    pub declaring_ms: u64,
}

/// A member as keepers list it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// The member.
    pub member: MemberId,
    /// What it said of itself.
    pub profile: Profile,
    /// Leases booked for it, those it has not yet collected included.
    pub held: u32,
    /// Leases it would like to have.
    pub want: u32,
    /// Checkouts waiting there.
    pub waiters: u32,
    /// Its offline share.
    pub share: u32,
    /// Leases it has been asked to give back.
    pub recall: u32,
    /// Since it last reported, where the keeper can tell.
    pub silent_ms: Option<u64>,
}

/// A backend's books as `forebay fleet status` shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendInfo {
    /// The backend.
    pub backend: String,
    /// The generation of the books; empty if there are none.
    pub generation: String,
    /// The limit that counts.
    pub limit: u32,
    /// Leases booked.
    pub total: u32,
    /// How much longer nothing is granted because the books are being rebuilt.
    pub declaring_ms: u64,
    /// Its members.
    pub members: Vec<MemberInfo>,
}

/// A request for rate permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    /// The backend.
    pub backend: String,
    /// How many.
    pub permits: u32,
    /// The limits as the member has them; used until the keeper knows better.
    pub limits: Limits,
    /// Reserve nothing if the first would have to wait for longer.
    pub max_wait_ms: u64,
    /// For opening a window on a keeper without data; see [`Report::nonce`].
    pub nonce: u64,
    /// How long such a window lasts.
    pub ttl_ms: u64,
}

/// Permits, as instants: the i-th (from 0) is good from `max(0, lead + i × interval)`
/// after the keeper's answer was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    /// When the first is good, in microseconds; negative if the bucket holds some.
    pub lead_us: i64,
    /// Between one permit and the next.
    pub interval_us: u64,
    /// How many; 0 if the first would have had to wait for too long.
    pub permits: u32,
}
