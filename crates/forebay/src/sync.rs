//! The lock of the hot path, exchanged for shuttle's when hand-off is
//! model-checked (`--cfg shuttle`). Panics never poison it: no user code runs
//! while it is held.

#[cfg(not(shuttle))]
pub(crate) use real::{Mutex, MutexGuard};

#[cfg(not(shuttle))]
mod real {
    pub(crate) use spin::mutex::spin::SpinMutexGuard as MutexGuard;

    /// How often to look again before giving up the processor.
    const LOOKS: u32 = 100;

    /// Held for tens of nanoseconds, with no user code and no system call inside,
    /// so waiting is done by looking again; unlocking is a plain store. Should the
    /// holder be off its processor, those who wait give up theirs.
    pub(crate) struct Mutex<T>(spin::mutex::SpinMutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(spin::mutex::SpinMutex::new(value))
        }

        #[inline]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            match self.0.try_lock() {
                Some(guard) => guard,
                None => self.lock_slowly(),
            }
        }

        #[cold]
        fn lock_slowly(&self) -> MutexGuard<'_, T> {
            loop {
                for _ in 0..LOOKS {
                    std::hint::spin_loop();
                    if !self.0.is_locked()
                        && let Some(guard) = self.0.try_lock()
                    {
                        return guard;
                    }
                }
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(shuttle)]
pub(crate) use model::{Mutex, MutexGuard};

#[cfg(shuttle)]
mod model {
    pub(crate) use shuttle::sync::MutexGuard;

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
        }
    }
}
