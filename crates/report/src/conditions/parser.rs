//! Reading a condition: precedence climbing over its words, with a check of what is compared with
//! what.

use super::selector::Selector;
use super::tokens::{Placed, Token, split};
use super::visits::VisitSelector;
use super::{Arithmetic, Comparison, Condition, ConditionError, Expression, Figure, Function};

pub(super) fn parse(text: &str) -> Result<Condition, ConditionError> {
    if text.len() > MAX_CONDITION_BYTES {
        let message = format!("it is longer than {MAX_CONDITION_BYTES} bytes; split it");
        return Err(ConditionError::new(text, 0, message));
    }
    let mut parser = Parser {
        text,
        tokens: split(text)?,
        next: 0,
        depth: 0,
        figures: Vec::new(),
        comparison: None,
        old: Vec::new(),
    };
    let (root, is) = parser.or()?;
    if parser.peek() != &Token::End {
        return Err(parser.wrong("here it should end, or go on with a sign, `and` or `or`"));
    }
    if is != Is::Truth {
        let message = "it must compare something, such as p95(0rtt) > 1.2*rtt";
        return Err(ConditionError::new(text, 0, message));
    }
    if parser.figures.is_empty() {
        let message = "it must contain a figure, such as p95(0rtt)";
        return Err(ConditionError::new(text, 0, message));
    }
    Ok(Condition { text: text.trim().to_owned(), root, figures: parser.figures })
}

/// What a part of a condition is, so that nobody compares milliseconds with a number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Truth,
    /// A bare number: takes the unit of what it stands beside.
    Number,
    Time,
    Count,
}

impl Is {
    fn name(self) -> &'static str {
        match self {
            Self::Truth => "a comparison",
            Self::Number => "a number",
            Self::Time => "a time",
            Self::Count => "a count",
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Placed>,
    next: usize,
    depth: usize,
    figures: Vec<Figure>,
    /// The first figure of the comparison that is being read.
    comparison: Option<usize>,
    /// Places of `old` in it.
    old: Vec<usize>,
}

type Part = (Expression, Is);

impl Parser<'_> {
    fn or(&mut self) -> Result<Part, ConditionError> {
        let mut left = self.and()?;
        while self.take_word("or") {
            let right = self.and()?;
            self.both_truth(left.1, right.1)?;
            left = (Expression::Or(Box::new([left.0, right.0])), Is::Truth);
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Part, ConditionError> {
        let mut left = self.not()?;
        while self.take_word("and") {
            let right = self.not()?;
            self.both_truth(left.1, right.1)?;
            left = (Expression::And(Box::new([left.0, right.0])), Is::Truth);
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Part, ConditionError> {
        if !self.take_word("not") {
            return self.comparison();
        }
        self.deeper()?;
        let (of, is) = self.not()?;
        self.depth -= 1;
        self.both_truth(is, is)?;
        Ok((Expression::Not(Box::new(of)), Is::Truth))
    }

    fn comparison(&mut self) -> Result<Part, ConditionError> {
        let left = self.sum()?;
        let comparison = match self.peek() {
            Token::Sign("<") => Comparison::Less,
            Token::Sign("<=") => Comparison::LessOrEqual,
            Token::Sign(">") => Comparison::Greater,
            Token::Sign(">=") => Comparison::GreaterOrEqual,
            Token::Sign("==") => Comparison::Equal,
            Token::Sign("!=") => Comparison::NotEqual,
            _ => return Ok(left),
        };
        let at = self.here();
        self.next += 1;
        let right = self.sum()?;
        self.same(left.1, right.1, at, "compare")?;
        let mut both = [left.0, right.0];
        self.settle_old(&mut both)?;
        Ok((Expression::Comparison(comparison, Box::new(both)), Is::Truth))
    }

    /// `old` is the comparison's first figure.
    fn settle_old(&mut self, both: &mut [Expression; 2]) -> Result<(), ConditionError> {
        let first = self.comparison.take();
        let places = std::mem::take(&mut self.old);
        match (first, places.first()) {
            (Some(first), Some(_)) => both.iter_mut().for_each(|side| set_old(side, first)),
            (None, Some(&at)) => {
                let message = "old needs a figure beside it, such as p50(0rtt) > 1.05*old";
                return Err(ConditionError::new(self.text, at, message));
            }
            _ => {}
        }
        Ok(())
    }

    fn sum(&mut self) -> Result<Part, ConditionError> {
        let mut left = self.product()?;
        loop {
            let (how, at) = match self.peek() {
                Token::Sign("+") => (Arithmetic::Plus, self.here()),
                Token::Sign("-") => (Arithmetic::Minus, self.here()),
                _ => return Ok(left),
            };
            self.next += 1;
            let right = self.product()?;
            let is = self.same(left.1, right.1, at, "add")?;
            left = (Expression::Arithmetic(how, Box::new([left.0, right.0])), is);
        }
    }

    fn product(&mut self) -> Result<Part, ConditionError> {
        let mut left = self.sign()?;
        loop {
            let (how, at) = match self.peek() {
                Token::Sign("*") => (Arithmetic::Times, self.here()),
                Token::Sign("/") => (Arithmetic::Over, self.here()),
                _ => return Ok(left),
            };
            self.next += 1;
            let right = self.sign()?;
            let is = match (how, left.1, right.1) {
                (_, Is::Truth, _) | (_, _, Is::Truth) => None,
                (_, left, Is::Number) => Some(left),
                (Arithmetic::Times, Is::Number, right) => Some(right),
                (Arithmetic::Over, left, right) if left == right => Some(Is::Number),
                _ => None,
            };
            let Some(is) = is else {
                let verb = if matches!(how, Arithmetic::Times) { "multiply" } else { "divide" };
                return Err(self.cannot(verb, left.1, right.1, at));
            };
            left = (Expression::Arithmetic(how, Box::new([left.0, right.0])), is);
        }
    }

    fn sign(&mut self) -> Result<Part, ConditionError> {
        if self.peek() != &Token::Sign("-") {
            return self.primary();
        }
        let at = self.here();
        self.next += 1;
        self.deeper()?;
        let (of, is) = self.sign()?;
        self.depth -= 1;
        if is == Is::Truth {
            return Err(ConditionError::new(self.text, at, "a comparison has no sign; use `not`"));
        }
        Ok((Expression::Negative(Box::new(of)), is))
    }

    fn primary(&mut self) -> Result<Part, ConditionError> {
        let at = self.here();
        match self.peek().clone() {
            Token::Number { value, is_time } => {
                self.next += 1;
                Ok((Expression::Number(value), if is_time { Is::Time } else { Is::Number }))
            }
            Token::Word(word) => {
                self.next += 1;
                self.named(&word, at)
            }
            Token::Sign("(") => {
                self.next += 1;
                self.deeper()?;
                let inner = self.or()?;
                self.depth -= 1;
                if self.peek() != &Token::Sign(")") {
                    return Err(self.wrong("a closing parenthesis is missing"));
                }
                self.next += 1;
                Ok(inner)
            }
            _ => Err(self.wrong("here a figure, a number, rtt or old is missing")),
        }
    }

    /// A variable or a figure.
    fn named(&mut self, word: &str, at: usize) -> Result<Part, ConditionError> {
        let error = |message: String| Err(ConditionError::new(self.text, at, message));
        let Token::Arguments(arguments) = self.peek().clone() else {
            return match word {
                "rtt" => Ok((Expression::Rtt, Is::Time)),
                "old" => {
                    self.old.push(at);
                    let first = self.comparison.and_then(|first| self.figures.get(first));
                    let is = match first.map(|figure| figure.function.is_time()) {
                        Some(true) => Is::Time,
                        Some(false) => Is::Count,
                        None => Is::Number,
                    };
                    Ok((Expression::Old(0), is))
                }
                _ if function(word).is_some() => error(format!(
                    "{word} needs parentheses with what it is taken of, such as {word}(0rtt)"
                )),
                _ => error(format!("unknown name {word:?}; variables are rtt and old")),
            };
        };
        let Some(function) = function(word) else {
            let names: Vec<&str> = Function::ALL.iter().map(|(name, _)| *name).collect();
            return error(format!("unknown function {word:?}; allowed are {}", names.join(", ")));
        };
        let wrong = |(offset, message): (usize, String)| {
            ConditionError::new(self.text, self.here() + 1 + offset, message)
        };
        let visits = VisitSelector::parse(&arguments, function).map_err(wrong)?;
        let selector = match visits {
            Some(_) => Selector::default(),
            None => Selector::parse(&arguments, function).map_err(wrong)?,
        };
        let others = self.figures.iter().find(|other| other.visits.is_some() != visits.is_some());
        if let Some(other) = others {
            return error(format!(
                "visits of browsers do not go with connections, as {} here; write two conditions",
                other.text
            ));
        }
        let text = self.text[at..self.tokens[self.next].end].to_owned();
        self.next += 1;
        let place = self.figures.len();
        self.figures.push(Figure { function, selector, visits, text });
        self.comparison.get_or_insert(place);
        Ok((Expression::Figure(place), if function.is_time() { Is::Time } else { Is::Count }))
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.next].token
    }

    fn here(&self) -> usize {
        self.tokens[self.next].at
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(word) if word == wanted);
        self.next += usize::from(found);
        found
    }

    /// Bounds the recursion.
    fn deeper(&mut self) -> Result<(), ConditionError> {
        self.depth += 1;
        match self.depth <= DEEPEST {
            true => Ok(()),
            false => Err(self.wrong("it is nested too deeply; write it flatter")),
        }
    }

    fn same(&self, left: Is, right: Is, at: usize, verb: &str) -> Result<Is, ConditionError> {
        match (left, right) {
            (Is::Truth, _) | (_, Is::Truth) => Err(self.cannot(verb, left, right, at)),
            (Is::Number, other) | (other, Is::Number) => Ok(other),
            (left, right) if left == right => Ok(left),
            _ => Err(self.cannot(verb, left, right, at)),
        }
    }

    fn both_truth(&self, left: Is, right: Is) -> Result<(), ConditionError> {
        match (left, right) {
            (Is::Truth, Is::Truth) => Ok(()),
            _ => Err(self.wrong("`and`, `or` and `not` join comparisons, such as p50(0rtt) > 5ms")),
        }
    }

    fn cannot(&self, verb: &str, left: Is, right: Is, at: usize) -> ConditionError {
        let message = format!("cannot {verb} {} and {}", left.name(), right.name());
        ConditionError::new(self.text, at, message)
    }

    fn wrong(&self, message: &str) -> ConditionError {
        ConditionError::new(self.text, self.here(), message)
    }
}

fn function(word: &str) -> Option<Function> {
    Function::ALL.iter().find(|(name, _)| *name == word).map(|(_, function)| *function)
}

fn set_old(expression: &mut Expression, figure: usize) {
    match expression {
        Expression::Old(place) => *place = figure,
        Expression::Negative(of) | Expression::Not(of) => set_old(of, figure),
        Expression::Arithmetic(_, both) | Expression::Comparison(_, both) => {
            both.iter_mut().for_each(|of| set_old(of, figure));
        }
        Expression::And(both) | Expression::Or(both) => {
            both.iter_mut().for_each(|of| set_old(of, figure));
        }
        Expression::Number(_) | Expression::Rtt | Expression::Figure(_) => {}
    }
}

const MAX_CONDITION_BYTES: usize = 4096;
const DEEPEST: usize = 64;
