//! How many connections to open: one formula, as arithmetic.

/// The figures of one source that decide its need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Ready connections wanted.
    pub target: u32,
    /// Checkouts waiting that this source is to serve.
    pub waiters: u32,
    /// Ready connections that do not retire within the lead time.
    pub fresh: u32,
    /// Opens under way.
    pub opening: u32,
    /// Connections in every state.
    pub open: u32,
    /// The most connections in every state.
    pub max_open: u32,
    /// The most opens under way at once.
    pub max_opening: u32,
}

impl Figures {
    /// Opens wanted, before the caps: `max(0, target + waiters − fresh − opening)`.
    #[inline]
    pub fn wanted(&self) -> u32 {
        let wanted = u64::from(self.target) + u64::from(self.waiters);
        let there = u64::from(self.fresh) + u64::from(self.opening);
        wanted.saturating_sub(there).try_into().unwrap_or(u32::MAX)
    }

    /// Opens to start now: what is wanted, within `max_open` and `max_opening`.
    ///
    /// ```
    /// let figures = forebay::Figures {
    ///     target: 50, waiters: 2, fresh: 40, opening: 4, open: 90, max_open: 100, max_opening: 16,
    /// };
    /// assert_eq!(figures.need(), 8);
    /// ```
    #[inline]
    pub fn need(&self) -> u32 {
        self.wanted()
            .min(self.max_open.saturating_sub(self.open))
            .min(self.max_opening.saturating_sub(self.opening))
    }
}
