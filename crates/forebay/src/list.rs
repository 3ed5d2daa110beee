//! Doubly linked lists threaded through a slab: every operation is a few
//! index writes, nothing is allocated, and any element can leave from the
//! middle. `N` tells lists apart that thread through the same elements.

use slab::Slab;

/// No element.
pub(crate) const NONE: u32 = u32::MAX;

/// An element's place in one list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

impl Default for Link {
    fn default() -> Self {
        Self { prev: NONE, next: NONE }
    }
}

/// An element of list `N`.
pub(crate) trait Linked<const N: usize> {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// One list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List<const N: usize> {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
}

impl<const N: usize> Default for List<N> {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, len: 0 }
    }
}

impl<const N: usize> List<N> {
    /// Takes the head off.
    #[inline]
    pub(crate) fn pop_front<T: Linked<N>>(&mut self, slab: &mut Slab<T>) {
        let next = slab[self.head as usize].link().next;
        self.head = next;
        self.len -= 1;
        match slab.get_mut(next as usize) {
            Some(next) => next.link_mut().prev = NONE,
            None => self.tail = NONE,
        }
    }

    #[inline]
    pub(crate) fn push_front<T: Linked<N>>(&mut self, slab: &mut Slab<T>, id: u32) {
        let head = self.head;
        *slab[id as usize].link_mut() = Link { prev: NONE, next: head };
        match slab.get_mut(head as usize) {
            Some(head) => head.link_mut().prev = id,
            None => self.tail = id,
        }
        self.head = id;
        self.len += 1;
    }

    /// Inserts `id` before `next`, at the end if that is [`NONE`].
    #[inline]
    pub(crate) fn insert_before<T: Linked<N>>(&mut self, slab: &mut Slab<T>, id: u32, next: u32) {
        let prev = if next == NONE { self.tail } else { slab[next as usize].link().prev };
        *slab[id as usize].link_mut() = Link { prev, next };
        match prev {
            NONE => self.head = id,
            _ => slab[prev as usize].link_mut().next = id,
        }
        match next {
            NONE => self.tail = id,
            _ => slab[next as usize].link_mut().prev = id,
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn remove<T: Linked<N>>(&mut self, slab: &mut Slab<T>, id: u32) {
        let Link { prev, next } = std::mem::take(slab[id as usize].link_mut());
        match prev {
            NONE => self.head = next,
            _ => slab[prev as usize].link_mut().next = next,
        }
        match next {
            NONE => self.tail = prev,
            _ => slab[next as usize].link_mut().prev = prev,
        }
        self.len -= 1;
    }

    /// The elements from the head on.
    pub(crate) fn iter<'a, T: Linked<N>>(
        &self,
        slab: &'a Slab<T>,
    ) -> impl Iterator<Item = u32> + use<'a, T, N> {
        let head = (self.head != NONE).then_some(self.head);
        std::iter::successors(head, |id| {
            let next = slab[*id as usize].link().next;
            (next != NONE).then_some(next)
        })
    }

    /// The elements from the tail on.
    pub(crate) fn iter_back<'a, T: Linked<N>>(
        &self,
        slab: &'a Slab<T>,
    ) -> impl Iterator<Item = u32> + use<'a, T, N> {
        let tail = (self.tail != NONE).then_some(self.tail);
        std::iter::successors(tail, |id| {
            let prev = slab[*id as usize].link().prev;
            (prev != NONE).then_some(prev)
        })
    }
}
