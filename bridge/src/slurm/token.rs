//! The JWT that slurmrestd asks for: read from a file, read again when the file changes. Never logged, never shown.

use std::path::PathBuf;
use std::time::SystemTime;

use http::HeaderValue;
use tokio::io::AsyncReadExt;
use tokio::sync::Mutex;

use super::error::Error;

/// The most that a token file may hold, in bytes.
const TOKEN_MAX: u64 = 64 * 1024;

/// A token file.
pub(super) struct Token {
    path: PathBuf,
    read: Mutex<Option<(Stamp, HeaderValue)>>,
}

/// By what a changed file is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    inode: u64,
    bytes: u64,
}

impl Token {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, read: Mutex::new(None) }
    }

    /// The token as the file has it now.
    pub(super) async fn current(&self) -> Result<HeaderValue, Error> {
        let mut read = self.read.lock().await;
        let stamp = self.stamp().await?;
        if let Some((known, token)) = read.as_ref()
            && *known == stamp
        {
            return Ok(token.clone());
        }
        let token = self.load().await?;
        *read = Some((stamp, token.clone()));
        Ok(token)
    }

    /// Reads the file again, whatever its times say; after `refused` was not accepted. `None` where it still holds that.
    pub(super) async fn other_than(&self, refused: &HeaderValue) -> Result<Option<HeaderValue>, Error> {
        *self.read.lock().await = None;
        let token = self.current().await?;
        Ok((token.as_bytes() != refused.as_bytes()).then_some(token))
    }

    async fn stamp(&self) -> Result<Stamp, Error> {
        use std::os::unix::fs::MetadataExt;
        let data = tokio::fs::metadata(&self.path).await.map_err(|error| self.error(error.to_string()))?;
        Ok(Stamp { modified: data.modified().ok(), inode: data.ino(), bytes: data.len() })
    }

    async fn load(&self) -> Result<HeaderValue, Error> {
        let file = tokio::fs::File::open(&self.path).await.map_err(|error| self.error(error.to_string()))?;
        let mut text = String::new();
        file.take(TOKEN_MAX)
            .read_to_string(&mut text)
            .await
            .map_err(|error| self.error(error.to_string()))?;
        // `scontrol token` prints it with the name of its variable.
        let text = text.trim();
        let text = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
        let in_jwt = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'=');
        if text.is_empty() || !text.bytes().all(in_jwt) {
            return Err(self.error("expected one JWT and nothing else".to_owned()));
        }
        let mut value = HeaderValue::from_str(text).map_err(|error| self.error(error.to_string()))?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn error(&self, why: String) -> Error {
        Error::Token { path: self.path.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_renewed_token_is_seen_and_a_bad_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = Token::new(path.clone());
        assert!(token.current().await.is_err());
        std::fs::write(&path, "SLURM_JWT=aaa.bbb.ccc\n").unwrap();
        let first = token.current().await.unwrap();
        assert_eq!(first.as_bytes(), b"aaa.bbb.ccc");
        assert!(first.is_sensitive());
        assert_eq!(token.other_than(&first).await.unwrap(), None);
        std::fs::write(&path, "dddd.eee.fff").unwrap();
        assert_eq!(token.current().await.unwrap().as_bytes(), b"dddd.eee.fff");
        assert!(token.other_than(&first).await.unwrap().is_some());
        for bad in ["", "two words", "<html>", "a\nb"] {
            std::fs::write(&path, bad).unwrap();
            let error = token.current().await.unwrap_err();
            assert!(bad.is_empty() || !error.to_string().contains(bad), "{error}");
        }
    }
}
