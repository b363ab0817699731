//! The flags for the body of a request.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use firstflight_client::ClientError;

use super::{REQUEST, read_named};

/// The values of -d and --data-binary in the order in which they were given, as with curl.
pub(super) struct Data(Vec<Part>);

struct Part {
    value: String,
    is_binary: bool,
}

/// The definition of both flags. clap keeps only the order of the values of one flag.
#[derive(Args)]
struct DataFlags {
    /// Request body; `@FILE` reads a file without its line breaks, `@-` standard input; several are
    /// joined by `&`. Makes the request a POST.
    #[arg(short, long, allow_hyphen_values = true, value_name = "DATA", help_heading = REQUEST)]
    data: Vec<String>,
    /// Like -d, but the bytes are sent unchanged.
    #[arg(long, allow_hyphen_values = true, value_name = "DATA", help_heading = REQUEST)]
    data_binary: Vec<String>,
}

impl Data {
    /// The body, or `None` if neither flag is given.
    pub(super) fn body(&self) -> Result<Option<Vec<u8>>, ClientError> {
        let mut parts = Vec::new();
        for part in &self.0 {
            let mut bytes = match part.value.strip_prefix('@') {
                Some(file) => read_named(file)?,
                None => part.value.clone().into_bytes(),
            };
            if !part.is_binary && part.value.starts_with('@') {
                bytes.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
            }
            parts.push(bytes);
        }
        Ok((!parts.is_empty()).then(|| parts.join(&b'&')))
    }
}

impl Args for Data {
    fn augment_args(command: Command) -> Command {
        DataFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        DataFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for Data {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let DataFlags { data, data_binary } = DataFlags::from_arg_matches(matches)?;
        let mut parts = Vec::new();
        for (id, values, is_binary) in [("data", data, false), ("data_binary", data_binary, true)] {
            let indices = matches.indices_of(id).into_iter().flatten();
            let values = values.into_iter().map(|value| Part { value, is_binary });
            parts.extend(indices.zip(values));
        }
        parts.sort_by_key(|(index, _)| *index);
        Ok(Self(parts.into_iter().map(|(_, part)| part).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
