//! Where upstreams and recorders run.

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

/// A runtime on its own threads, so that tests may block, and may have a runtime themselves.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    })
}
