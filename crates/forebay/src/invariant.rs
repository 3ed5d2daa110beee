//! The catalogue of what always holds in one pool. Tests and the simulator
//! recount everything after every step; in production the driver compares the
//! running totals each time it wakes, and a breach is a counter, an event and
//! an error in the log.

macro_rules! invariants {
    ($($(#[$meta:meta])* $name:ident = $text:literal,)*) => {
        /// A promise of the engine.
        ///
        /// ```
        /// assert!(forebay::Invariant::ALL.len() >= 9);
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Invariant { $($(#[$meta])* $name,)* }

        impl Invariant {
            /// The whole catalogue.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name used in metrics and logs.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

invariants! {
    /// A connection with less than the guard window left is never handed out.
    Guard = "guard",
    /// Connections in every state never exceed `max_open`.
    Cap = "cap",
    /// Connections in every state never exceed the leases held.
    Leases = "leases",
    /// Connects stay within the rate budget.
    Rate = "rate",
    /// Every connection is opening, ready, in use, closing or detached: exactly one.
    Conservation = "conservation",
    /// A checkout dropped or left unpolled keeps nothing.
    CancelSafe = "cancel_safe",
    /// Nobody passes an older waiter of its class that could have used the connection.
    Fair = "fair",
    /// One deadline covers all phases of a checkout.
    Deadline = "deadline",
    /// What one user left on a connection never reaches the next.
    Clean = "clean",
    /// In steady state no connection is opened and closed without being used.
    NoWaste = "no_waste",
    /// Nothing usable lies in stock while somebody waits for it.
    NoIdleWhileWaiting = "no_idle_while_waiting",
}

/// Records a breach unless the condition holds.
macro_rules! check {
    ($breaches:expr, $invariant:ident, $condition:expr) => {
        if !$condition {
            $breaches.push($crate::invariant::Invariant::$invariant);
        }
    };
}
pub(crate) use check;
