//! The errors of a store.

use firstflight_replay::Unknown;

/// Why a command to the store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached, or did not reply in time.
    #[error("the store cannot be reached: {0}")]
    Absent(String),
    /// The store replied with an error, or with something unexpected.
    #[error("the store refused the command: {0}")]
    Refused(String),
    /// An invalid setting.
    #[error("{0}")]
    Setting(String),
    /// The store's replies do not count now.
    #[error("the replies of the store do not count now ({0:?})")]
    Unknown(Unknown),
}

impl StoreError {
    /// Returns what the error means for a claim.
    pub fn unknown(&self) -> Unknown {
        match self {
            Self::Absent(_) => Unknown::Absent,
            Self::Refused(_) | Self::Setting(_) => Unknown::Refused,
            Self::Unknown(why) => *why,
        }
    }
}
