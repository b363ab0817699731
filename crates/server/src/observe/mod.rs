pub(crate) mod access_log;
pub(crate) mod connection_metrics;
pub(crate) mod replays;
pub(crate) mod request;
pub(crate) mod request_metrics;
pub(crate) mod status;
pub(crate) mod timeline;
pub(crate) mod trace;
