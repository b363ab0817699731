//! One connection to a store process: its socket, its way in, requests and replies.

mod reply;
mod socket;

use std::time::Duration;

use combine::parser::combinator::AnySendSyncPartialState;
use combine::stream::{Decoder, PointerOffset};
use redis::{Cmd, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) use reply::{epoch_age, error_of, integer, refusal, text, time};
pub(crate) use socket::Secure;

use crate::{Address, StoreError};
use socket::{Metered, dial};

/// What one exchange may answer with at most. Our records are small; more than that is no store
/// that we know, and must not cost its memory.
const MAX_REPLY: usize = 4 << 20;

/// How one gets into a store.
#[derive(Clone)]
pub(crate) struct Access {
    pub secure: Option<Secure>,
    pub username: Option<String>,
    pub password: Option<String>,
    pub database: u32,
    /// How long connecting and logging in may take together.
    pub patience: Duration,
}

/// One connection. After an error, or if an exchange was given up half-way, it is good for nothing
/// more.
pub(crate) struct Link {
    stream: Metered,
    decoder: Decoder<AnySendSyncPartialState, PointerOffset<[u8]>>,
}

impl Link {
    /// Connects and logs in.
    pub(crate) async fn open(address: &Address, access: &Access) -> Result<Self, StoreError> {
        let opened = tokio::time::timeout(access.patience, Self::enter(address, access)).await;
        opened.unwrap_or_else(|_| Err(StoreError::Absent(format!("{address} is silent"))))
    }

    async fn enter(address: &Address, access: &Access) -> Result<Self, StoreError> {
        let stream = Metered::new(dial(address, access.secure.as_ref()).await?);
        let mut link = Self { stream, decoder: Decoder::default() };
        if let Some(password) = &access.password {
            let mut auth = redis::cmd("AUTH");
            if let Some(username) = &access.username {
                auth.arg(username);
            }
            link.command(auth.arg(password)).await?;
        }
        if access.database != 0 {
            link.command(redis::cmd("SELECT").arg(access.database)).await?;
        }
        Ok(link)
    }

    /// Sends `request`, which holds as many commands as there are `replies`, and gives what is
    /// answered, errors too.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        replies: usize,
    ) -> Result<Vec<Value>, StoreError> {
        self.stream.allow(MAX_REPLY);
        self.stream.write_all(request).await.map_err(broken)?;
        self.stream.flush().await.map_err(broken)?;
        let mut values = Vec::with_capacity(replies);
        for _ in 0..replies {
            let value = redis::parse_redis_value_async(&mut self.decoder, &mut self.stream).await;
            values.push(value.map_err(|error| match error.is_io_error() {
                true => StoreError::Absent(error.to_string()),
                false => StoreError::Refused("its answer is not of a store".to_owned()),
            })?);
        }
        Ok(values)
    }

    /// Returns when the other end has closed, or has said what nobody asked for. Nothing may be
    /// under way meanwhile; it may be given up and asked again.
    pub(crate) async fn ended(&mut self) -> StoreError {
        self.stream.allow(1);
        match self.stream.read(&mut [0]).await {
            Ok(0) => StoreError::Absent("it closed the connection".to_owned()),
            Ok(_) => StoreError::Refused("it speaks without having been asked".to_owned()),
            Err(error) => broken(error),
        }
    }

    /// One command; an error that is answered is one here too.
    pub(crate) async fn command(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        let mut values = self.exchange(&command.get_packed_command(), 1).await?;
        let value = values.pop().unwrap_or(Value::Nil);
        error_of(&value).map_or(Ok(value), Err)
    }
}

fn broken(error: std::io::Error) -> StoreError {
    StoreError::Absent(error.to_string())
}
