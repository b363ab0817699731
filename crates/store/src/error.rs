//! Why the store could not do what it was asked.

use firstflight_replay::Unknown;

/// Why the store could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached, or did not answer in time.
    #[error("the store does not answer: {0}")]
    Absent(String),
    /// It answered by an error.
    #[error("the store refused: {0}")]
    Refused(String),
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(String),
    /// Its word does not count now.
    #[error("the store's word does not count now: {0:?}")]
    Unknown(Unknown),
}

impl StoreError {
    /// What it means for a claim.
    pub fn unknown(&self) -> Unknown {
        match self {
            Self::Absent(_) => Unknown::Absent,
            Self::Refused(_) | Self::Setting(_) => Unknown::Refused,
            Self::Unknown(why) => *why,
        }
    }
}
