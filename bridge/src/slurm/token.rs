//! The JWT that slurmrestd asks for, from whoever makes it: a file, a command, or ourselves with Slurm's own key. Never
//! logged, never shown. When it ends is read from its claims, so that people hear of it before Slurm says no.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};
use http::HeaderValue;
use jiff::{SignedDuration, Timestamp};
use jwt_compact::alg::{Hs256, Hs256Key};
use jwt_compact::{AlgorithmExt as _, Claims, Header, UntrustedToken};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Mutex;

use super::command;
use super::error::Error;

/// The most that a file of a token or a key may hold, in bytes.
const FILE_MAX: u64 = 64 * 1024;
/// A token of a command or of our own is replaced when it has less than this left.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_mins(5);
/// A token that we mint is good for this long: it never leaves this process and slurmrestd.
const MINTED_FOR: SignedDuration = SignedDuration::from_mins(30);
/// A command's token that does not say when it ends is asked for again after this.
const UNTOLD_GOOD_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Who makes the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A file, read again when it changes.
    File(PathBuf),
    /// A command's output, such as `scontrol token lifespan=3600`: run again before its token ends.
    Command(Vec<String>),
    /// The key of Slurm's `auth/jwt` (`jwt_hs256.key`): we mint a token for half an hour at a time.
    Key(PathBuf),
}

impl TokenSource {
    /// Whether a token can come of it, as far as files tell: asks nobody and runs nothing.
    ///
    /// # Errors
    /// What is wrong; never a word of the secret.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::File(path) => {
                let bytes = read_at_most(path).map_err(|error| error.to_string())?;
                let text = String::from_utf8(bytes).map_err(|_| NO_TEXT.to_owned())?;
                jwt(&text).map(drop).map_err(str::to_owned)
            }
            Self::Key(path) => match read_at_most(path) {
                Ok(bytes) if bytes.is_empty() => Err(EMPTY.to_owned()),
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            Self::Command(argv) => {
                let program = argv.first().map(String::as_str).unwrap_or_default();
                if command::is_there(program) {
                    return Ok(());
                }
                let what = if program.contains('/') { "is no program" } else { "is in no folder of PATH" };
                Err(format!("{program} {what}"))
            }
        }
    }
}

/// What Slurm will hardly take, of a source that [`TokenSource::check`] calls good: a file's word that is no JWT, or one that
/// has ended by now. No reason to refuse it: the file is read again when it changes.
pub(crate) fn doubt(source: &TokenSource, now: Timestamp) -> Option<String> {
    let TokenSource::File(path) = source else { return None };
    let text = String::from_utf8(read_at_most(path).ok()?).ok()?;
    let token = jwt(&text).ok()?;
    if UntrustedToken::new(token).is_err() {
        return Some(format!("{source}: it holds a word that is no JWT"));
    }
    let ends = ends(token).filter(|ends| *ends <= now)?;
    Some(format!("{source}: its token ended at {ends}"))
}

fn read_at_most(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

const EMPTY: &str = "it is empty";
const NO_TEXT: &str = "it is no text; expected one JWT and nothing else";

/// The JWT in a text that should hold nothing else. (A stand-in's word without dots is taken too.)
fn jwt(text: &str) -> Result<&str, &'static str> {
    // `scontrol token` prints it with the name of its variable.
    let text = text.trim();
    let text = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
    let in_jwt = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'=');
    if text.is_empty() {
        return Err(EMPTY);
    }
    if !text.bytes().all(in_jwt) {
        return Err("it holds characters that no JWT has; expected one JWT and nothing else");
    }
    Ok(text)
}

impl std::fmt::Display for TokenSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "token file {}", path.display()),
            Self::Command(argv) => write!(f, "token command {}", argv.join(" ")),
            Self::Key(path) => write!(f, "key file {}", path.display()),
        }
    }
}

/// Tokens for one user.
pub(super) struct Tokens {
    source: TokenSource,
    user: String,
    deadline: Duration,
    held: Mutex<Option<Held>>,
}

/// A token and what it was made from.
struct Held {
    token: HeaderValue,
    ends: Option<Timestamp>,
    made: Made,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Read from a file that looked so.
    Read(Stamp),
    /// Made at this instant.
    At(Timestamp),
}

/// By what a changed file is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    inode: u64,
    bytes: u64,
}

/// Slurm's own claim: the user that the token speaks for.
#[derive(Debug, Serialize, Deserialize)]
struct SlurmClaims {
    sun: String,
}

/// A token may be for any user; only its end matters here.
#[derive(Debug, Deserialize)]
struct AnyClaims {}

impl Tokens {
    /// Tokens that speak for `user`. A command has `deadline` to make one.
    pub(super) fn new(source: TokenSource, user: String, deadline: Duration) -> Self {
        Self { source, user, deadline, held: Mutex::new(None) }
    }

    /// The token to use at `now`.
    pub(super) async fn current(&self, now: Timestamp) -> Result<HeaderValue, Error> {
        let mut held = self.held.lock().await;
        if let Some(known) = held.as_ref()
            && self.is_good(known, now).await?
        {
            return Ok(known.token.clone());
        }
        let new = self.make(now).await?;
        let token = new.token.clone();
        *held = Some(new);
        Ok(token)
    }

    /// Makes one anew, whatever the last one said of itself; after `refused` was not accepted. `None` where it is the same.
    pub(super) async fn other_than(
        &self,
        refused: &HeaderValue,
        now: Timestamp,
    ) -> Result<Option<HeaderValue>, Error> {
        *self.held.lock().await = None;
        let token = self.current(now).await?;
        Ok((token.as_bytes() != refused.as_bytes()).then_some(token))
    }

    /// When the token in use ends and nobody but a person will replace it.
    pub(super) async fn ends(&self) -> Option<Timestamp> {
        match self.source {
            TokenSource::File(_) => self.held.lock().await.as_ref()?.ends,
            TokenSource::Command(_) | TokenSource::Key(_) => None,
        }
    }

    async fn is_good(&self, held: &Held, now: Timestamp) -> Result<bool, Error> {
        match (&self.source, held.made) {
            (TokenSource::File(path), Made::Read(stamp)) => Ok(self.stamp(path).await? == stamp),
            (TokenSource::File(_), Made::At(_))
            | (TokenSource::Command(_) | TokenSource::Key(_), Made::Read(_)) => Ok(false),
            (TokenSource::Command(_) | TokenSource::Key(_), Made::At(made)) => {
                let until = held.ends.map_or(made.saturating_add(UNTOLD_GOOD_FOR), |ends| {
                    // One that lives shorter than that is used until its end.
                    ends.saturating_sub(RENEW_BEFORE.min(made.duration_until(ends) / 2))
                });
                // Before it was made: the clock was set back.
                Ok(now >= made && until.is_ok_and(|until| now < until))
            }
        }
    }

    async fn make(&self, now: Timestamp) -> Result<Held, Error> {
        match &self.source {
            TokenSource::File(path) => {
                let stamp = self.stamp(path).await?;
                let text = String::from_utf8(self.read(path).await?).map_err(|_| self.error(NO_TEXT))?;
                self.held(&text, Made::Read(stamp))
            }
            TokenSource::Command(argv) => {
                let output = command::run(argv, &[], self.deadline, command::WORDS_MAX).await;
                let output = output.map_err(|error| self.error(error.to_string()))?;
                let text = String::from_utf8(output).map_err(|_| self.error("it did not print a JWT"))?;
                self.held(&text, Made::At(now))
            }
            TokenSource::Key(path) => {
                let key = self.read(path).await?;
                if key.is_empty() {
                    return Err(self.error(EMPTY));
                }
                let text = self.mint(&Hs256Key::from(key.as_slice()), now)?;
                self.held(&text, Made::At(now))
            }
        }
    }

    fn mint(&self, key: &Hs256Key, now: Timestamp) -> Result<String, Error> {
        let at = |instant: Timestamp| {
            DateTime::<Utc>::from_timestamp(instant.as_second(), 0)
                .ok_or_else(|| self.error(format!("a token cannot be dated {instant}")))
        };
        let ends = now.saturating_add(MINTED_FOR).map_err(|error| self.error(error.to_string()))?;
        let mut claims = Claims::new(SlurmClaims { sun: self.user.clone() });
        claims.issued_at = Some(at(now)?);
        claims.expiration = Some(at(ends)?);
        let token = Hs256.token(&Header::empty().with_token_type("JWT"), &claims, key);
        token.map_err(|error| self.error(error.to_string()))
    }

    fn held(&self, text: &str, made: Made) -> Result<Held, Error> {
        let text = jwt(text).map_err(|why| self.error(why))?;
        let mut token = HeaderValue::from_str(text).map_err(|error| self.error(error.to_string()))?;
        token.set_sensitive(true);
        Ok(Held { token, ends: ends(text), made })
    }

    async fn stamp(&self, path: &Path) -> Result<Stamp, Error> {
        use std::os::unix::fs::MetadataExt;
        let data = tokio::fs::metadata(path).await.map_err(|error| self.error(error.to_string()))?;
        Ok(Stamp { modified: data.modified().ok(), inode: data.ino(), bytes: data.len() })
    }

    async fn read(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let file = tokio::fs::File::open(path).await.map_err(|error| self.error(error.to_string()))?;
        let mut bytes = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut bytes).await.map_err(|error| self.error(error.to_string()))?;
        Ok(bytes)
    }

    fn error(&self, why: impl Into<String>) -> Error {
        Error::Token { from: self.source.to_string(), why: why.into() }
    }
}

/// When a token ends by its own words, which nobody has verified: good enough to warn by. `None` where it does not say, or
/// is no JWT (a stand-in's).
fn ends(token: &str) -> Option<Timestamp> {
    let token = UntrustedToken::new(token).ok()?;
    let claims = token.deserialize_claims_unchecked::<AnyClaims>().ok()?;
    Timestamp::from_second(claims.expiration?.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[tokio::test]
    async fn a_renewed_token_is_seen_and_a_bad_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let tokens = Tokens::new(TokenSource::File(path.clone()), "slurm".into(), DEADLINE);
        assert!(tokens.current(at(0)).await.is_err());
        std::fs::write(&path, "SLURM_JWT=aaa.bbb.ccc\n").unwrap();
        let first = tokens.current(at(0)).await.unwrap();
        assert_eq!(first.as_bytes(), b"aaa.bbb.ccc");
        assert!(first.is_sensitive());
        assert_eq!(tokens.other_than(&first, at(0)).await.unwrap(), None);
        std::fs::write(&path, "dddd.eee.fff").unwrap();
        assert_eq!(tokens.current(at(0)).await.unwrap().as_bytes(), b"dddd.eee.fff");
        assert!(tokens.other_than(&first, at(0)).await.unwrap().is_some());
        for bad in ["", "two words", "<html>", "a\nb"] {
            std::fs::write(&path, bad).unwrap();
            let error = tokens.current(at(0)).await.unwrap_err();
            assert!(bad.is_empty() || !error.to_string().contains(bad), "{error}");
        }
    }

    #[tokio::test]
    async fn a_key_mints_tokens_for_the_user_and_renews_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jwt_hs256.key");
        std::fs::write(&path, [7_u8; 32]).unwrap();
        let tokens = Tokens::new(TokenSource::Key(path.clone()), "gpu-bridge".into(), DEADLINE);
        let first = tokens.current(at(0)).await.unwrap();
        let text = first.to_str().unwrap();
        assert_eq!(ends(text), Some(at(1_800)));
        let key = Hs256Key::from([7_u8; 32].as_slice());
        let read =
            Hs256.validator::<SlurmClaims>(&key).validate(&UntrustedToken::new(text).unwrap()).unwrap();
        assert_eq!(read.claims().custom.sun, "gpu-bridge");
        // 25 minutes long the same, then another one; another one too where the clock was set back.
        assert_eq!(tokens.current(at(1_499)).await.unwrap(), first);
        let second = tokens.current(at(1_500)).await.unwrap();
        assert_ne!(second, first);
        assert_ne!(tokens.current(at(0)).await.unwrap(), second);
        assert_eq!(tokens.ends().await, None, "nobody has to renew it");
    }

    #[tokio::test]
    async fn a_command_is_asked_again_before_its_token_ends() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let script = format!("echo x >> {0}; echo SLURM_JWT=a.b.$(wc -l < {0})", count.display());
        let argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let tokens = Tokens::new(TokenSource::Command(argv), "slurm".into(), DEADLINE);
        for (now, expected) in [(0, "a.b.1"), (299, "a.b.1"), (300, "a.b.2")] {
            assert_eq!(tokens.current(at(now)).await.unwrap().as_bytes(), expected.as_bytes(), "{now} s");
        }
        let refused = HeaderValue::from_static("a.b.2");
        assert_eq!(tokens.other_than(&refused, at(301)).await.unwrap().unwrap().as_bytes(), b"a.b.3");

        let argv = ["sh", "-c", "echo no key >&2; exit 3"].map(str::to_owned).to_vec();
        let failing = Tokens::new(TokenSource::Command(argv), "slurm".into(), DEADLINE);
        let error = failing.current(at(0)).await.unwrap_err().to_string();
        assert!(error.contains("no key"), "{error}");
    }

    #[tokio::test]
    async fn a_file_tells_when_its_token_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (key, file) = (folder.path().join("key"), folder.path().join("token"));
        std::fs::write(&key, [7_u8; 32]).unwrap();
        let minted =
            Tokens::new(TokenSource::Key(key), "slurm".into(), DEADLINE).current(at(0)).await.unwrap();
        std::fs::write(&file, minted.as_bytes()).unwrap();
        let tokens = Tokens::new(TokenSource::File(file), "slurm".into(), DEADLINE);
        assert_eq!(tokens.ends().await, None, "not read yet");
        tokens.current(at(0)).await.unwrap();
        assert_eq!(tokens.ends().await, Some(at(1_800)));
    }

    #[tokio::test]
    async fn a_token_that_slurm_will_hardly_take_is_doubted() {
        let folder = tempfile::tempdir().unwrap();
        let (key, file) = (folder.path().join("key"), folder.path().join("token"));
        std::fs::write(&key, [7_u8; 32]).unwrap();
        let minted = Tokens::new(TokenSource::Key(key.clone()), "slurm".into(), DEADLINE);
        std::fs::write(&file, minted.current(at(0)).await.unwrap().as_bytes()).unwrap();
        let source = TokenSource::File(file.clone());
        assert_eq!(doubt(&source, at(1_799)), None);
        assert!(doubt(&source, at(1_800)).unwrap().contains("its token ended at 2027-01-15T08:30:00Z"));
        std::fs::write(&file, "CHANGE-ME").unwrap();
        let told = doubt(&source, at(0)).unwrap();
        assert!(told.contains("no JWT") && !told.contains("CHANGE-ME"), "{told}");
        // What `check` refuses, or cannot judge, is not doubted too.
        for content in ["", "two words"] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(doubt(&source, at(0)), None, "{content:?}");
        }
        assert_eq!(doubt(&TokenSource::Key(key), at(0)), None);
        assert_eq!(doubt(&TokenSource::File(folder.path().join("none")), at(0)), None);
    }
}
