"""Seventy-five fortunes: five for each category and mood."""

from typing import Literal

Category = Literal["love", "career", "health", "wealth", "general"]
Mood = Literal["optimistic", "mysterious", "cautious"]

FORTUNES: dict[str, dict[str, tuple[str, ...]]] = {
    "love": {
        "optimistic": (
            "Someone smiles when your name comes up. Find out who.",
            "A kind word you say this week comes back to you twofold.",
            "The next long walk will be better in company.",
            "An old affection is about to bloom again.",
            "Your heart already knows the answer, and it is yes.",
        ),
        "mysterious": (
            "A letter that was never sent is still on its way to you.",
            "Two shadows meet at a door that you have walked past many times.",
            "The one you think of at dusk has a secret shaped like yours.",
            "What the left hand hides, the right hand is about to offer.",
            "Listen for a familiar song in an unfamiliar street.",
        ),
        "cautious": (
            "Read the message again tomorrow before you answer it.",
            "Not every silence is a promise; ask before you hope.",
            "Give your trust in small coins first.",
            "A quick yes may cost you a slow year.",
            "Look at what they do when nobody is watching.",
        ),
    },
    "career": {
        "optimistic": (
            "The work you did quietly is about to be noticed aloud.",
            "A door that looked locked only needs a push.",
            "Your next idea is worth more than the last ten.",
            "Somebody is looking for exactly what you can do.",
            "The promotion begins with the task that nobody wants.",
        ),
        "mysterious": (
            "An empty chair at a long table has your name under it.",
            "A number you have seen three times this week is an address.",
            "The person who says least in the meeting decides it.",
            "What you delete today will be asked for in spring.",
            "The map is wrong, but the road is real.",
        ),
        "cautious": (
            "Put it in writing before you shake hands.",
            "Count the hours, not only the honours.",
            "Do not leave the boat before you have seen the harbour.",
            "A rival's praise is a question in disguise.",
            "Ask who pays when the plan does not work.",
        ),
    },
    "health": {
        "optimistic": (
            "Strength returns with the early light.",
            "Your body forgives faster than you do; let it.",
            "A small habit begun this week will outlive the year.",
            "Laughter is already on its way to your ribs.",
            "The long tiredness is nearly over.",
        ),
        "mysterious": (
            "Water remembers the road you forgot.",
            "A dream of stairs is asking you to climb them.",
            "The herb you step on is the one you need.",
            "Your breath counts something that you do not.",
            "There is a bench in the sun that knows your step.",
        ),
        "cautious": (
            "Sleep before you decide that you do not need to.",
            "The ache that whispers now may shout later; listen.",
            "Even good medicine comes in a measured spoon.",
            "Rest is not what remains when all is done.",
            "Do not race a younger version of yourself.",
        ),
    },
    "wealth": {
        "optimistic": (
            "Financial opportunities are heading your way.",
            "A small sum put aside today has grand plans.",
            "What you lent will find its way home.",
            "Your patience is about to pay interest.",
            "The bargain you hesitate over is a good one.",
        ),
        "mysterious": (
            "A coin you lost has been travelling towards you all along.",
            "The vault has two doors, and you stand between them.",
            "Gold sleeps where the paper is thinnest.",
            "Someone counts in the dark and arrives at your number.",
            "The third offer is the first one, dressed differently.",
        ),
        "cautious": (
            "Read the small print by daylight.",
            "A fast gain keeps slow company with loss.",
            "Leave one purse at home.",
            "What everyone buys today someone will have to sell.",
            "Keep a winter's worth before you plan a summer.",
        ),
    },
    "general": {
        "optimistic": (
            "Good news is closer than the postman thinks.",
            "The wind turns in your favour before the week does.",
            "You will soon be glad of a detour.",
            "A stranger brings the missing piece.",
            "What began badly is about to end well.",
        ),
        "mysterious": (
            "Three birds, two windows, one answer.",
            "The clock that stopped is right about you.",
            "Something you own is waiting to be found by you.",
            "The question changes when you say it aloud.",
            "Follow the colour that you keep noticing.",
        ),
        "cautious": (
            "Knock twice before you enter and once before you leave.",
            "Not every open gate leads to a garden.",
            "Keep a copy of what you cannot replace.",
            "The shortest way has the sharpest corner.",
            "Let the dust settle before you call it snow.",
        ),
    },
}
