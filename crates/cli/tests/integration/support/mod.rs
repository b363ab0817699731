//! What the tests share: the program under test, its peers, and browsers.

pub(crate) mod chromium;
pub(crate) mod firefox;
pub(crate) mod openssl;
pub(crate) mod peer;
pub(crate) mod program;
