package config

import (
	"strings"
	"unicode"
)

// near returns the candidate that word was most likely meant to be, or "".
func near(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	best, bestDistance := "", 3
	for _, c := range candidates {
		if letters(c) == letters(word) { // max-wait, MaxWait
			return c
		}
		if short := min(len(c), len(word)); best == "" && short >= 4 && c[:short] == word[:short] { // warning
			best = c
		}
		// A word of which half is wrong is another word.
		if d := distance(word, c); d < bestDistance && 2*d < len(c) {
			best, bestDistance = c, d
		}
	}
	return best
}

// didYouMean is the end of a sentence about a word that is not one of the
// candidates: the nearest, or all of them.
func didYouMean(word string, candidates []string) string {
	if c := near(word, candidates); c != "" {
		return "did you mean \"" + c + "\"?"
	}
	return "write " + oneOf(candidates)
}

func oneOf(words []string) string { return enumerate(words, " or ") }

func allOf(words []string) string { return enumerate(words, " and ") }

func enumerate(words []string, conjunction string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + conjunction + words[last]
}

func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
}

// distance is the number of bytes to insert, delete or replace (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
