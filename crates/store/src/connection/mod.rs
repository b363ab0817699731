//! One connection to a store process: its socket, its login, requests and replies.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use combine::parser::combinator::AnySendSyncPartialState;
use combine::stream::{Decoder, PointerOffset};
use firstflight_replay::{Epoch, Unknown};
use redis::{Cmd, Value};
pub(crate) use socket::TlsClient;
use socket::{LimitedStream, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{Address, StoreError};

mod socket;

/// Maximum size of the replies of one exchange. Our records are small; the bound protects memory
/// against a misbehaving peer.
const MAX_REPLY_BYTES: usize = 4 << 20;

/// How to connect and log in.
pub(crate) struct ConnectOptions {
    /// Replaced when the CA file is read again.
    pub tls: RwLock<Option<TlsClient>>,
    pub username: Option<String>,
    /// Replaced when an operator changes it.
    pub password: RwLock<Option<String>>,
    pub database: u32,
    /// Timeout of connecting and logging in together.
    pub timeout: Duration,
}

/// One connection. It cannot be used any more after an error or a cancelled exchange.
pub(crate) struct Connection {
    stream: LimitedStream,
    decoder: Decoder<AnySendSyncPartialState, PointerOffset<[u8]>>,
}

impl Connection {
    /// Connects and logs in.
    pub(crate) async fn open(
        address: &Address,
        connect_options: &ConnectOptions,
    ) -> Result<Self, StoreError> {
        let opened = tokio::time::timeout(
            connect_options.timeout,
            Self::connect_and_log_in(address, connect_options),
        )
        .await;
        opened.unwrap_or_else(|_| Err(StoreError::Absent(format!("{address} did not reply"))))
    }

    async fn connect_and_log_in(
        address: &Address,
        connect_options: &ConnectOptions,
    ) -> Result<Self, StoreError> {
        let tls = connect_options.tls.read().unwrap_or_else(PoisonError::into_inner).clone();
        let stream = LimitedStream::new(connect(address, tls.as_ref()).await?);
        let mut connection = Self { stream, decoder: Decoder::default() };
        let password =
            connect_options.password.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(password) = password {
            let mut auth = redis::cmd("AUTH");
            if let Some(username) = &connect_options.username {
                auth.arg(username);
            }
            connection.command(auth.arg(password)).await?;
        }
        if connect_options.database != 0 {
            connection.command(redis::cmd("SELECT").arg(connect_options.database)).await?;
        }
        Ok(connection)
    }

    /// Sends `request`, which contains as many commands as `replies`, and returns the replies,
    /// including error replies.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        replies: usize,
    ) -> Result<Vec<Value>, StoreError> {
        self.stream.set_limit(MAX_REPLY_BYTES);
        self.stream.write_all(request).await.map_err(io_error)?;
        self.stream.flush().await.map_err(io_error)?;
        let mut values = Vec::with_capacity(replies);
        for _ in 0..replies {
            let value = redis::parse_redis_value_async(&mut self.decoder, &mut self.stream).await;
            values.push(value.map_err(|error| match error.is_io_error() {
                true => StoreError::Absent(error.to_string()),
                false => StoreError::Refused("its reply is not valid RESP".to_owned()),
            })?);
        }
        Ok(values)
    }

    /// Waits until the peer closes the connection or sends something unrequested. No exchange may be
    /// in progress. Cancel safe.
    pub(crate) async fn closed(&mut self) -> StoreError {
        self.stream.set_limit(1);
        match self.stream.read(&mut [0]).await {
            Ok(0) => StoreError::Absent("it closed the connection".to_owned()),
            Ok(_) => StoreError::Refused("it sent an unrequested message".to_owned()),
            Err(error) => io_error(error),
        }
    }

    /// Runs one command; an error reply is an error.
    pub(crate) async fn command(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        let mut values = self.exchange(&command.get_packed_command(), 1).await?;
        let value = values.pop().unwrap_or(Value::Nil);
        error_of(&value).map_or(Ok(value), Err)
    }
}

fn io_error(error: std::io::Error) -> StoreError {
    StoreError::Absent(error.to_string())
}

/// Maximum length of the store's text in an error.
const MAX_ERROR_CHARS: usize = 160;

/// Returns the error, if this is an error reply.
pub(crate) fn error_of(value: &Value) -> Option<StoreError> {
    let Value::ServerError(error) = value else { return None };
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    let plain: String = text.chars().filter(|c| !c.is_control()).take(MAX_ERROR_CHARS).collect();
    Some(StoreError::Refused(plain.trim().to_owned()))
}

/// Returns why the outcome of a claim is unknown, if this is an error reply.
pub(crate) fn refusal(value: &Value) -> Option<Unknown> {
    match value {
        Value::ServerError(error) if error.code() == "NOREPLICAS" => Some(Unknown::Unreplicated),
        Value::ServerError(_) => Some(Unknown::Refused),
        _ => None,
    }
}

/// Parses a number, sent as integer or as text.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => text(value)?.parse().ok(),
    }
}

/// Returns the text of a string reply, if it is UTF-8.
pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK"),
        _ => None,
    }
}

/// Parses the reply to `TIME`: seconds and microseconds since 1970.
pub(crate) fn time(value: &Value) -> Option<Duration> {
    let Value::Array(parts) = value else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let seconds = u64::try_from(integer(seconds)?).ok()?;
    let micros = u32::try_from(integer(micros)?).ok().filter(|micros| *micros < 1_000_000)?;
    // Later times could overflow sums.
    (seconds < 1 << 40).then(|| Duration::new(seconds, micros * 1000))
}

/// Returns how long ago the epoch record was written, from its remaining time to live (`PTTL`). Zero
/// for a record without expiry, which this program does not write.
pub(crate) fn epoch_age(value: &Value) -> Duration {
    let ttl = integer(value).and_then(|ttl| u64::try_from(ttl).ok());
    ttl.map_or(Duration::ZERO, |ttl| Epoch::LIFETIME.saturating_sub(Duration::from_millis(ttl)))
}

/// The error for a reply that does not fit its command.
pub(crate) fn unexpected_reply() -> StoreError {
    StoreError::Refused("it sent an unexpected reply".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_or_refused() {
        let reply = |parts: &[&str]| {
            Value::Array(parts.iter().map(|p| Value::BulkString(p.as_bytes().to_vec())).collect())
        };
        assert_eq!(time(&reply(&["5", "7"])), Some(Duration::new(5, 7000)));
        for wrong in [&["5"][..], &["-5", "7"], &["5", "1000000"], &["9223372036854775807", "7"]] {
            assert_eq!(time(&reply(wrong)), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_epoch_without_expiry_has_age_zero() {
        assert_eq!(epoch_age(&Value::Int(-1)), Duration::ZERO);
        assert_eq!(epoch_age(&Value::Int(-2)), Duration::ZERO);
        assert_eq!(epoch_age(&Value::Int(i64::MAX)), Duration::ZERO);
        let life = i64::try_from(Epoch::LIFETIME.as_millis()).unwrap();
        assert_eq!(epoch_age(&Value::Int(life - 1500)), Duration::from_millis(1500));
    }
}
