//! Why a connection was discarded, and why one could not be opened: closed
//! lists, each reason with the name it has in metrics, logs and documents.

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vmeta])* $variant,)* }

        impl $name {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name used in metrics, logs and documents.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why a connection was closed.
    ///
    /// ```
    /// assert_eq!(forebay::Discard::ReservoirFull.as_str(), "reservoir_full");
    /// ```
    Discard {
        /// Its life was over when a checkout found it.
        ExpiredOnCheckout = "expired_on_checkout",
        /// Its life ended while it was in use.
        ExpiredOnReturn = "expired_on_return",
        /// Its life was over when its turn came in the expiry order.
        ExpiredOnScan = "expired_on_scan",
        /// Less than the guard window was left at checkout or return.
        InsufficientRemainingLifetime = "insufficient_remaining_lifetime",
        /// Less than the guard window was left when its turn came in the expiry order.
        ExpiringSoonOnScan = "expiring_soon_on_scan",
        /// Closed shortly before its time so that its slot could be opened anew.
        ReplacedInPlace = "replaced_in_place",
        /// It came back to a stock that keeps no surplus.
        ReservoirFull = "reservoir_full",
        /// Dead, failed its check or reset, or said so by its user.
        Broken = "broken",
        /// It came back in the middle of a response, or while its user panicked.
        UnknownState = "unknown_state",
        /// Opened before the last `invalidate`.
        OldGeneration = "old_generation",
        /// Idle for longer than `max_idle`.
        Idle = "idle",
        /// Its slot was needed for another key.
        Evicted = "evicted",
        /// The pool was drained or dropped.
        Drained = "drained",
        /// Killed in use: beyond its hard life, past the end of a fence, or when a drain's time was up.
        Killed = "killed",
        /// The count budget asked for its lease back.
        LeaseRecalled = "lease_recalled",
        /// Its user kept it for itself and has now dropped it.
        Detached = "detached",
    }
}

reasons! {
    /// What stopped an open.
    ///
    /// ```
    /// assert_eq!(forebay::OpenFailure::Lease.as_str(), "lease");
    /// ```
    OpenFailure {
        /// The count budget had no lease.
        Lease = "lease",
        /// The rate budget gave no permit.
        Rate = "rate",
        /// Credentials could not be had or were refused.
        Credentials = "credentials",
        /// The connect failed or took too long.
        Connect = "connect",
        /// A check of an idle connection failed.
        Check = "check",
        /// A reset after use failed.
        Reset = "reset",
        /// The connector panicked.
        Panic = "panic",
    }
}
