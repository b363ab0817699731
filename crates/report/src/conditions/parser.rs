//! Parses a condition by recursive descent and checks the types of its operands.

use super::selector::{Selector, VisitSelector};
use super::{Arithmetic, Comparison, Condition, ConditionError, Expression, Figure, Function};

pub(super) fn parse(text: &str) -> Result<Condition, ConditionError> {
    if text.len() > MAX_CONDITION_BYTES {
        let message = format!("the condition is longer than {MAX_CONDITION_BYTES} bytes; split it");
        return Err(ConditionError::new(text, 0, message));
    }
    let mut parser = Parser {
        text,
        tokens: tokenize(text)?,
        next: 0,
        depth: 0,
        figures: Vec::new(),
        comparison: None,
        old: Vec::new(),
    };
    let (root, value_type) = parser.or()?;
    if parser.peek() != &Token::End {
        return Err(
            parser.error_here("expected an operator, `and`, `or` or the end of the condition")
        );
    }
    if value_type != ValueType::Boolean {
        let message = "a condition must be a comparison, such as p95(0rtt) > 1.2*rtt";
        return Err(ConditionError::new(text, 0, message));
    }
    if parser.figures.is_empty() {
        let message = "a condition must contain a figure, such as p95(0rtt)";
        return Err(ConditionError::new(text, 0, message));
    }
    Ok(Condition { text: text.trim().to_owned(), root, figures: parser.figures })
}

/// The type of an expression. Prevents comparisons such as milliseconds with a number of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    Boolean,
    /// A number without unit, which takes the unit of the other operand.
    Number,
    Time,
    Count,
}

impl ValueType {
    fn name(self) -> &'static str {
        match self {
            Self::Boolean => "a comparison",
            Self::Number => "a number",
            Self::Time => "a time",
            Self::Count => "a count",
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<SpannedToken>,
    next: usize,
    depth: usize,
    figures: Vec<Figure>,
    /// The first figure of the comparison that is being parsed.
    comparison: Option<usize>,
    /// Positions of `old` in that comparison.
    old: Vec<usize>,
}

/// A subexpression with its type.
type TypedExpression = (Expression, ValueType);

impl Parser<'_> {
    fn or(&mut self) -> Result<TypedExpression, ConditionError> {
        let mut left = self.and()?;
        while self.accept_word("or") {
            let right = self.and()?;
            self.require_booleans(left.1, right.1)?;
            left = (Expression::Or(Box::new([left.0, right.0])), ValueType::Boolean);
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<TypedExpression, ConditionError> {
        let mut left = self.not()?;
        while self.accept_word("and") {
            let right = self.not()?;
            self.require_booleans(left.1, right.1)?;
            left = (Expression::And(Box::new([left.0, right.0])), ValueType::Boolean);
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<TypedExpression, ConditionError> {
        if !self.accept_word("not") {
            return self.comparison();
        }
        self.descend()?;
        let (operand, value_type) = self.not()?;
        self.depth -= 1;
        self.require_booleans(value_type, value_type)?;
        Ok((Expression::Not(Box::new(operand)), ValueType::Boolean))
    }

    fn comparison(&mut self) -> Result<TypedExpression, ConditionError> {
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
        let start = self.position();
        self.next += 1;
        let right = self.sum()?;
        self.common_type(left.1, right.1, start, "compare")?;
        let mut operands = [left.0, right.0];
        self.resolve_old(&mut operands)?;
        Ok((Expression::Comparison(comparison, Box::new(operands)), ValueType::Boolean))
    }

    /// Lets `old` refer to the comparison's first figure.
    fn resolve_old(&mut self, operands: &mut [Expression; 2]) -> Result<(), ConditionError> {
        let first = self.comparison.take();
        let old_positions = std::mem::take(&mut self.old);
        match (first, old_positions.first()) {
            (Some(first), Some(_)) => {
                operands.iter_mut().for_each(|side| set_old_figure(side, first))
            }
            (None, Some(&start)) => {
                let message =
                    "old needs a figure in the same comparison, such as p50(0rtt) > 1.05*old";
                return Err(ConditionError::new(self.text, start, message));
            }
            _ => {}
        }
        Ok(())
    }

    fn sum(&mut self) -> Result<TypedExpression, ConditionError> {
        let mut left = self.product()?;
        loop {
            let (operator, start) = match self.peek() {
                Token::Sign("+") => (Arithmetic::Plus, self.position()),
                Token::Sign("-") => (Arithmetic::Minus, self.position()),
                _ => return Ok(left),
            };
            self.next += 1;
            let right = self.product()?;
            let value_type = self.common_type(left.1, right.1, start, "add")?;
            left = (Expression::Arithmetic(operator, Box::new([left.0, right.0])), value_type);
        }
    }

    fn product(&mut self) -> Result<TypedExpression, ConditionError> {
        let mut left = self.unary()?;
        loop {
            let (operator, start) = match self.peek() {
                Token::Sign("*") => (Arithmetic::Times, self.position()),
                Token::Sign("/") => (Arithmetic::Over, self.position()),
                _ => return Ok(left),
            };
            self.next += 1;
            let right = self.unary()?;
            let value_type = match (operator, left.1, right.1) {
                (_, ValueType::Boolean, _) | (_, _, ValueType::Boolean) => None,
                (_, left, ValueType::Number) => Some(left),
                (Arithmetic::Times, ValueType::Number, right) => Some(right),
                (Arithmetic::Over, left, right) if left == right => Some(ValueType::Number),
                _ => None,
            };
            let Some(value_type) = value_type else {
                let verb =
                    if matches!(operator, Arithmetic::Times) { "multiply" } else { "divide" };
                return Err(self.type_error(verb, left.1, right.1, start));
            };
            left = (Expression::Arithmetic(operator, Box::new([left.0, right.0])), value_type);
        }
    }

    fn unary(&mut self) -> Result<TypedExpression, ConditionError> {
        if self.peek() != &Token::Sign("-") {
            return self.primary();
        }
        let start = self.position();
        self.next += 1;
        self.descend()?;
        let (operand, value_type) = self.unary()?;
        self.depth -= 1;
        if value_type == ValueType::Boolean {
            return Err(ConditionError::new(
                self.text,
                start,
                "a comparison has no sign; use `not`",
            ));
        }
        Ok((Expression::Negative(Box::new(operand)), value_type))
    }

    fn primary(&mut self) -> Result<TypedExpression, ConditionError> {
        let start = self.position();
        match self.peek().clone() {
            Token::Number { value, is_time } => {
                self.next += 1;
                Ok((
                    Expression::Number(value),
                    if is_time { ValueType::Time } else { ValueType::Number },
                ))
            }
            Token::Word(word) => {
                self.next += 1;
                self.named(&word, start)
            }
            Token::Sign("(") => {
                self.next += 1;
                self.descend()?;
                let inner = self.or()?;
                self.depth -= 1;
                if self.peek() != &Token::Sign(")") {
                    return Err(self.error_here("a closing parenthesis is missing"));
                }
                self.next += 1;
                Ok(inner)
            }
            _ => Err(self.error_here("expected a figure, a number, rtt or old")),
        }
    }

    /// Parses a variable or a figure.
    fn named(&mut self, word: &str, start: usize) -> Result<TypedExpression, ConditionError> {
        let error = |message: String| Err(ConditionError::new(self.text, start, message));
        let Token::Arguments(arguments) = self.peek().clone() else {
            return match word {
                "rtt" => Ok((Expression::Rtt, ValueType::Time)),
                "old" => {
                    self.old.push(start);
                    let first = self.comparison.and_then(|first| self.figures.get(first));
                    let value_type = match first.map(|figure| figure.function.is_time()) {
                        Some(true) => ValueType::Time,
                        Some(false) => ValueType::Count,
                        None => ValueType::Number,
                    };
                    Ok((Expression::Old(0), value_type))
                }
                _ if function(word).is_some() => {
                    error(format!("{word} needs a selection in parentheses, such as {word}(0rtt)"))
                }
                _ => error(format!("unknown name {word:?}; variables are rtt and old")),
            };
        };
        let Some(function) = function(word) else {
            let names: Vec<&str> = Function::ALL.iter().map(|(name, _)| *name).collect();
            return error(format!("unknown function {word:?}; allowed are {}", names.join(", ")));
        };
        let error_here = |(offset, message): (usize, String)| {
            ConditionError::new(self.text, self.position() + 1 + offset, message)
        };
        let visits = VisitSelector::parse(&arguments, function).map_err(error_here)?;
        let selector = match visits {
            Some(_) => Selector::default(),
            None => Selector::parse(&arguments, function).map_err(error_here)?,
        };
        let others = self.figures.iter().find(|other| other.visits.is_some() != visits.is_some());
        if let Some(other) = others {
            return error(format!(
                "visits of browsers cannot be combined with connections, such as {}; write two conditions",
                other.text
            ));
        }
        let text = self.text[start..self.tokens[self.next].end].to_owned();
        self.next += 1;
        let index = self.figures.len();
        self.figures.push(Figure { function, selector, visits, text });
        self.comparison.get_or_insert(index);
        Ok((
            Expression::Figure(index),
            if function.is_time() { ValueType::Time } else { ValueType::Count },
        ))
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.next].token
    }

    fn position(&self) -> usize {
        self.tokens[self.next].start
    }

    fn accept_word(&mut self, expected: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(word) if word == expected);
        self.next += usize::from(found);
        found
    }

    /// Bounds the recursion depth.
    fn descend(&mut self) -> Result<(), ConditionError> {
        self.depth += 1;
        match self.depth <= MAX_NESTING {
            true => Ok(()),
            false => Err(self.error_here("it is nested too deeply; use fewer parentheses")),
        }
    }

    fn common_type(
        &self,
        left: ValueType,
        right: ValueType,
        start: usize,
        verb: &str,
    ) -> Result<ValueType, ConditionError> {
        match (left, right) {
            (ValueType::Boolean, _) | (_, ValueType::Boolean) => {
                Err(self.type_error(verb, left, right, start))
            }
            (ValueType::Number, other) | (other, ValueType::Number) => Ok(other),
            (left, right) if left == right => Ok(left),
            _ => Err(self.type_error(verb, left, right, start)),
        }
    }

    fn require_booleans(&self, left: ValueType, right: ValueType) -> Result<(), ConditionError> {
        match (left, right) {
            (ValueType::Boolean, ValueType::Boolean) => Ok(()),
            _ => {
                Err(self
                    .error_here("`and`, `or` and `not` join comparisons, such as p50(0rtt) > 5ms"))
            }
        }
    }

    fn type_error(
        &self,
        verb: &str,
        left: ValueType,
        right: ValueType,
        start: usize,
    ) -> ConditionError {
        let message = format!("cannot {verb} {} and {}", left.name(), right.name());
        ConditionError::new(self.text, start, message)
    }

    fn error_here(&self, message: &str) -> ConditionError {
        ConditionError::new(self.text, self.position(), message)
    }
}

fn function(word: &str) -> Option<Function> {
    Function::ALL.iter().find(|(name, _)| *name == word).map(|(_, function)| *function)
}

fn set_old_figure(expression: &mut Expression, figure: usize) {
    match expression {
        Expression::Old(index) => *index = figure,
        Expression::Negative(operand) | Expression::Not(operand) => {
            set_old_figure(operand, figure);
        }
        Expression::Arithmetic(_, operands) | Expression::Comparison(_, operands) => {
            operands.iter_mut().for_each(|operand| set_old_figure(operand, figure));
        }
        Expression::And(operands) | Expression::Or(operands) => {
            operands.iter_mut().for_each(|operand| set_old_figure(operand, figure));
        }
        Expression::Number(_) | Expression::Rtt | Expression::Figure(_) => {}
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A number; times are converted to milliseconds.
    Number {
        value: f64,
        is_time: bool,
    },
    Word(String),
    /// The text between a function's parentheses.
    Arguments(String),
    Sign(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct SpannedToken {
    pub token: Token,
    /// Start, in bytes.
    pub start: usize,
    /// End, in bytes.
    pub end: usize,
}

/// Splits a condition into tokens; the last one is [`Token::End`].
pub(super) fn tokenize(text: &str) -> Result<Vec<SpannedToken>, ConditionError> {
    let mut tokens: Vec<SpannedToken> = Vec::new();
    let mut start = 0;
    while let Some(first) = text[start..].chars().next() {
        if first.is_whitespace() {
            start += first.len_utf8();
            continue;
        }
        let after_word = matches!(tokens.last(), Some(SpannedToken { token: Token::Word(word), .. })
            if !OPERATORS.contains(&word.as_str()));
        let (token, end) = match first {
            '(' if after_word => arguments(text, start)?,
            '0'..='9' | '.' => number(text, start)?,
            'a'..='z' | 'A'..='Z' | '_' => word(text, start),
            _ => sign(text, start)?,
        };
        tokens.push(SpannedToken { token, start, end });
        start = end;
    }
    tokens.push(SpannedToken { token: Token::End, start, end: start });
    Ok(tokens)
}

pub(super) const OPERATORS: [&str; 3] = ["and", "or", "not"];

fn arguments(text: &str, start: usize) -> Result<(Token, usize), ConditionError> {
    let Some(length) = text[start..].find(')') else {
        return Err(ConditionError::new(text, start, "this parenthesis is not closed"));
    };
    Ok((Token::Arguments(text[start + 1..start + length].to_owned()), start + length + 1))
}

fn number(text: &str, start: usize) -> Result<(Token, usize), ConditionError> {
    let digits = run(text, start, |c| c.is_ascii_digit() || c == '.');
    let unit_end = run(text, digits, |c| c.is_alphanumeric());
    let value = text[start..digits].parse::<f64>().ok().filter(|value| value.is_finite());
    let Some(value) = value else {
        let message = format!("{:?} is not a number; write it like 1.5", &text[start..digits]);
        return Err(ConditionError::new(text, start, message));
    };
    let (factor, is_time) = match &text[digits..unit_end] {
        "" => (1.0, false),
        "us" | "µs" => (1e-3, true),
        "ms" => (1.0, true),
        "s" => (1e3, true),
        unit => {
            let message = format!("unknown unit {unit:?}; allowed are us, ms and s");
            return Err(ConditionError::new(text, digits, message));
        }
    };
    Ok((Token::Number { value: value * factor, is_time }, unit_end))
}

fn word(text: &str, start: usize) -> (Token, usize) {
    let end = run(text, start, |c| c.is_ascii_alphanumeric() || c == '_');
    (Token::Word(text[start..end].to_ascii_lowercase()), end)
}

fn sign(text: &str, start: usize) -> Result<(Token, usize), ConditionError> {
    const SIGNS: [&str; 12] = ["<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "(", ")"];
    match SIGNS.into_iter().find(|sign| text[start..].starts_with(sign)) {
        Some(sign) => Ok((Token::Sign(sign), start + sign.len())),
        None => {
            let sign = text[start..].chars().next().unwrap_or_default();
            let message = format!("unexpected {sign:?}; operators are < <= > >= == != + - * /");
            Err(ConditionError::new(text, start, message))
        }
    }
}

/// The end of the run of matching characters that starts at `start`.
fn run(text: &str, start: usize, matches: impl Fn(char) -> bool) -> usize {
    text[start..].find(|c| !matches(c)).map_or(text.len(), |length| start + length)
}

const MAX_CONDITION_BYTES: usize = 4096;
const MAX_NESTING: usize = 64;
