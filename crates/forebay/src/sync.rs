//! The lock of the hot path, exchanged for shuttle's when hand-off is
//! model-checked (`--cfg shuttle`). Panics never poison it: no user code runs
//! while it is held.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

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
