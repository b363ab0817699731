use std::io;
use std::path::PathBuf;

/// Why there is no authority, or no certificate of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// It is not known where this user's data lies.
    #[error("the development authority has no place: neither HOME nor XDG_DATA_HOME is set")]
    NoHome,
    /// A file or directory cannot be used.
    #[error("cannot {verb} {path}: {source}")]
    File {
        /// What was to be done with it.
        verb: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others could be the authority.
    #[error(
        "{path} may be read or written by others, who could pretend to be anything here; run \
         `chmod go= {path}`, or `firstflight authority remove` if others may have read it"
    )]
    Open {
        /// The key's or the certificate's file, or their directory.
        path: PathBuf,
    },
    /// It is somebody else's.
    #[error(
        "{path} belongs to another user, whose authority is none of yours; set XDG_DATA_HOME to a \
         directory of your own"
    )]
    Foreign {
        /// The file or directory.
        path: PathBuf,
    },
    /// What lies there is of no use.
    #[error("{path} is no development authority ({reason}); run `firstflight authority remove`")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It has ended.
    #[error(
        "the development authority in {path} has expired; run `firstflight authority remove`, and \
         a new one is made"
    )]
    Expired {
        /// Its certificate.
        path: PathBuf,
    },
    /// A name that no certificate can have.
    #[error("no certificate can be made for {names}: {reason}; give host names or addresses")]
    Names {
        /// The names.
        names: String,
        /// What the library says.
        reason: String,
    },
    /// The system gives no key.
    #[error("no key can be made: {0}")]
    Key(String),
}
